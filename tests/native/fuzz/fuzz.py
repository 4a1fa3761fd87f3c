"""Fuzzes the C core with libFuzzer, or the Python edge with atheris, for a while.

    python tests/native/fuzz/fuzz.py core --seconds 600
    python tests/native/fuzz/fuzz.py edge --seconds 600

`core` needs clang and libzstd.so.1, `edge` the atheris package. New inputs go to a directory outside of the
repository; what is worth keeping is merged into `corpus/` with --merge, which keeps it small. A crash leaves its input
behind and exits 1.
"""

import argparse
import ctypes.util
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "_native"
CORPUS = HERE / "corpus"


def zstd_library() -> str:
    """The path of the system's libzstd.so.1, for a linker without its -dev package."""
    name = ctypes.util.find_library("zstd") or "libzstd.so.1"
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib")
    return next((str(Path(folder, name)) for folder in folders if Path(folder, name).exists()), name)


def build(target: Path, compiler: str, *flags: str) -> None:
    """Compiles the core and the harness with sanitizers."""
    sources = [str(path) for path in sorted(NATIVE.glob("*.c"))]
    command = [compiler, "-g", "-O1", "-std=gnu11", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", *flags]
    command += [f"-I{NATIVE}", *sources, str(HERE / "harness.c"), zstd_library(), "-lm", "-ldl", "-o", str(target)]
    subprocess.run(command, check=True)


def can_build(compiler: str, folder: Path, *flags: str) -> bool:
    """Whether the compiler has these sanitizers and the system libzstd: so that any other failure to build is one."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [compiler, *flags, str(source), zstd_library(), "-o", str(folder / "empty")]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def seeds() -> "list[bytes]":
    """Well-formed inputs of every kind for the harness to start from."""
    from shuflr import core

    work = core.Work()
    texts = [b"", b"\n", b"a\nbb\nccc", bytes(range(256)) * 3, b"x" * 3000]
    texts.append(b'{"a":[1,2.5e-3,"\\u00e9",null,true]}\n' * 9)
    found = []
    for text in texts:
        frame, checksum = work.compress(text, 3)
        for flags in (1, 8 | 2, 4 | 8 | 16 | 32):
            numbers = bytes([flags, len(text) & 255, len(text) >> 8, checksum & 255, 1, 0, 3, 40]).ljust(15, b"\1")
            found.append(b"\0" + numbers + bytes(frame))
            found.append(b"\1" + numbers + bytes(frame) * 2)
        for numbers in (b"\5\1\7\1\3\2\4", b"\2\0\3\3\377\1\1", b"\0\2\1\2\1\7\2"):
            found.append(b"\2" + numbers.ljust(15, b"\0") + text)
            found.append(b"\3" + numbers.ljust(15, b"\0") + text)
            found.append(b"\7" + numbers.ljust(15, b"\0") + text)
            found.append(b"\x08" + numbers.ljust(15, b"\5") + text)
    places = struct.pack("<9I", 0, 0, 4, 0, 4, 6, 2, 0, 9)
    found += [b"\4" + bytes([size]).ljust(15, b"\0") + places for size in (0, 1, 20)]
    offsets = struct.pack("<8H", 0, 3, 3, 9, 14, 16, 20, 11)
    found += [b"\5" + bytes([flag, 2, 1, 40]).ljust(15, b"\0") + offsets for flag in (0, 1)]
    records = b"".join(struct.pack("<I", len(each)) + each for each in (b"", b"a", b"x" * 300))
    lies = (4, records), (1 << 31, records), (1, b"\xff\xff\xff\xff"), (1, b"\4\0\0\0abc"), (0, b"")
    for count, rest in ((3, records), *lies):
        message = b"\3" + bytes(4) + struct.pack("<QII", 1, 0, count) + rest + bytes(8)
        found += [b"\x09" + bytes([sealed, 3]).ljust(15, b"\0") + message for sealed in (0, 1)]
    ids = [b"", b"a", b"train-000001", b"0" * 40, bytes(range(40))] * 3
    plain = b"".join(bytes([len(each)]) + each for each in ids)
    # Sixteen digits each (131: eight bytes, spelled), the zero among them; enough for a table to grow.
    spelled = b"".join(bytes([131]) + number.to_bytes(8, "big") for number in range(60))
    shares = [bytes([share, held]).ljust(16, b"\3") for share in (0, 100, 255) for held in (0, 1)]
    found += [b"\6" + share + plain + spelled for share in shares]
    return found


def fuzz_core(seconds: int, merge: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        program, work = Path(folder, "fuzz"), Path(folder, "work")
        work.mkdir()
        build(program, "clang", "-fsanitize=fuzzer,address,undefined")
        for i, seed in enumerate(seeds()):
            Path(work, f"seed{i}").write_bytes(seed)
        common = ["-max_len=4096", "-rss_limit_mb=1024", "-timeout=20"]
        run = [str(program), str(work), str(CORPUS), f"-max_total_time={seconds}", "-print_final_stats=1", *common]
        code = subprocess.run(run, check=False).returncode
        if code == 0 and merge:
            kept = Path(folder, "kept")
            kept.mkdir()
            subprocess.run([str(program), "-merge=1", *common, str(kept), str(work), str(CORPUS)], check=True)
            for old in CORPUS.iterdir():
                old.unlink()
            for new in sorted(kept.iterdir(), key=lambda path: path.stat().st_size)[:400]:
                Path(CORPUS, new.name[:16]).write_bytes(new.read_bytes())
        return 1 if code else 0


def edge(data: bytes) -> None:
    """One input through every parser of the Python edge; only the package's own errors may come out."""
    import io
    import json

    from shuflr.errors import ShuflrError
    from shuflr.order.position import Position
    from shuflr.order.token import position_of, token_of
    from shuflr.records.codecs import decoded
    from shuflr.records.inputs import read_chunks
    from shuflr.records.seektable import read_seek_table
    from shuflr.records.sieve import Limits, Partition, Sieve, whole_records

    class Here:
        mode, seed, replays, dropped, fingerprint = "none", 1, False, 0, bytes(32)
        parameters: "dict[str, int]" = {}

        def epoch(self, start: Position) -> "list[object]":
            return []

    kind, data = data[:1], data[1:]
    try:
        if kind < b"\x40":
            read_seek_table(len(data), lambda offset, length: data[offset : offset + length])
        elif kind < b"\x80":
            size = 0
            for chunk in read_chunks(decoded(io.BytesIO(data)), 512):
                size += len(chunk)
                if size > 1 << 20:
                    break
        elif kind < b"\xc0":
            sieve = Sieve(Limits(40, kind[0] % 3), Partition(0, 1 + kind[0] % 2))
            step = kind[0] % 13 + 1
            chunks = (data[i : i + step] for i in range(0, len(data), step))
            out = b"".join(bytes(block.data) for block in whole_records(chunks, sieve))
            assert len(out) <= len(data) + 1
        else:
            position = position_of(data.decode("latin-1"), Here())  # type: ignore[arg-type]
            assert position_of(token_of(Here(), position), Here()) == position  # type: ignore[arg-type]
            json.dumps(position)
    except ShuflrError:
        pass


def edge_seeds() -> "list[bytes]":
    """Well-formed inputs for the Python edge."""
    import base64
    import bz2
    import gzip
    import json
    import lzma

    from shuflr import core
    from shuflr.records.seektable import encode_seek_table

    text = b"one\ntwo\n" * 20
    frame = bytes(core.Work().compress(text, 3)[0])
    table = encode_seek_table([(len(frame), len(text), 7)], True)
    token = {"version": 1, "fingerprint": "00" * 32, "seed": 1, "mode": "none", "parameters": {}, "position": [0] * 5}
    packed = [gzip.compress(text) * 2, bz2.compress(text) * 2, lzma.compress(text) * 2, frame * 2, text]
    return [b"\0" + frame + table, b"\xff" + base64.urlsafe_b64encode(json.dumps(token).encode())] + [
        kind + data for data in packed for kind in (b"\x41", b"\x81", b"\x82")
    ]


def fuzz_edge(seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["shuflr"]):
        import shuflr.order.token
        import shuflr.records.codecs
        import shuflr.records.seektable
        import shuflr.records.sieve  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        for i, seed in enumerate(edge_seeds()):
            Path(folder, f"seed{i}").write_bytes(seed)
        atheris.Setup([sys.argv[0], folder, f"-max_total_time={seconds}", "-max_len=2048"], edge)
        atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=("core", "edge"))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--merge", action="store_true", help="keep what adds coverage in corpus/")
    options = parser.parse_args()
    if options.target == "edge":
        return fuzz_edge(options.seconds)
    return fuzz_core(options.seconds, options.merge)


if __name__ == "__main__":
    sys.exit(main())
