"""The command line: what it promises beside the recorded behaviour, which tests/interop replays."""

import io
import json
import os
import stat
import subprocess
import sys
import time

import pytest

from shuflr.cli import COMMANDS, run
from shuflr.cli.options import byte_size
from shuflr.cli.output import RecordOutput
from shuflr.records.seekable import SeekableFile
from shuflr.records.writer import write_seekable

LINES = [b'{"n":%d}\n' % i for i in range(500)]


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHUFLR_SEED", raising=False)
    (tmp_path / "c.jsonl").write_bytes(b"".join(LINES))
    with open(tmp_path / "c.zst", "wb", buffering=0) as out:
        write_seekable(io.BytesIO(b"".join(LINES)), out, frame_size=400)
    return tmp_path


def command(*arguments, **options):
    program = [sys.executable, "-c", "from shuflr.cli import main; main()", *arguments]
    return subprocess.run(program, capture_output=True, check=False, **options)


SIZES = {"4096": 4096, "1.5k": 1500, "2MB": 2_000_000, "64KiB": 65536, "1Gi": 2**30, "1 t": 10**12}


@pytest.mark.parametrize("text, size", SIZES.items())
def test_sizes_have_units_of_1000_and_1024(text, size):
    assert byte_size(text) == size


def test_frame_pool_is_a_mode_with_a_size(there, capfdbinary):
    assert run(["-s", "frame-pool:3", "--seed", "5", "c.zst"]) == 0
    pooled = capfdbinary.readouterr().out
    assert sorted(pooled.splitlines(True)) == sorted(LINES)
    assert run(["-s", "frame-pool", "--pool-size", "3", "--seed", "5", "c.zst"]) == 0
    assert capfdbinary.readouterr().out == pooled
    assert run(["-s", "frame-pool:3", "--seed", "5", "-n", "7", "c.zst"]) == 0
    assert capfdbinary.readouterr().out == b"".join(pooled.splitlines(True)[:7])


def test_what_was_left_out_is_counted_at_the_end(there, capfd):
    assert run(["-s", "none", "--max-line", "9", "c.jsonl"]) == 0
    out, err = capfd.readouterr()
    assert out == "".join(line.decode() for line in LINES if len(line) <= 9)
    assert "400 records" in err
    assert run(["-s", "none", "--max-line", "9", "--on-error", "fail", "c.jsonl"]) == 65
    assert "oversized record at byte 890: 10 bytes exceeds --max-line 9" in capfd.readouterr().err


def test_a_checksum_is_compared_unless_told_otherwise(there, capfd):
    data = bytearray((there / "c.zst").read_bytes())
    data[-12] ^= 1  # in the last checksum of the seek table
    (there / "bad.zst").write_bytes(data)
    assert run(["-s", "none", "bad.zst"]) == 65
    assert "checksum" in capfd.readouterr().err
    assert run(["-s", "none", "--no-verify", "bad.zst"]) == 0
    assert capfd.readouterr().out.encode() == b"".join(LINES)


def test_verify_prints_facts_as_json(there, capfd):
    assert run(["verify", "--json", "--deep", "c.zst"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["records"], facts["checksums"], facts["verdict"]) == (500, "xxh64", "ok")
    (there / "bad.jsonl").write_bytes(b'{"a":1}\n{"a":}\n\nnull')
    assert run(["verify", "--json", "--deep", "bad.jsonl"]) == 65
    facts = json.loads(capfd.readouterr().out)
    assert (facts["json_faults"], facts["trailing_partial"], facts["verdict"]) == (2, True, "failed")
    assert facts["errors"][0].startswith("record 2: ")


def test_analyze_says_what_each_order_costs(there, capfd):
    assert run(["analyze", "--json", "--orders", "c.zst"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert [row["order"] for row in facts["orders"]][:2] == ["chunk-shuffled", "frame-pool:8"]
    assert facts["recommended"] in [row["order"] for row in facts["orders"]]
    assert run(["analyze", "c.zst"]) == 0
    assert "recommended:" in capfd.readouterr().out


def test_convert_is_atomic_and_keeps_the_old_file_when_it_fails(there, capfd):
    (there / "out.zst").write_bytes(b"old")
    (there / "cut.gz").write_bytes(__import__("gzip").compress(b"".join(LINES))[:-9])
    assert run(["convert", "cut.gz", "-o", "out.zst"]) == 70
    assert (there / "out.zst").read_bytes() == b"old"
    assert run(["convert", "c.jsonl", "-o", "out.zst", "--verify", "-f", "1KiB"]) == 0
    assert SeekableFile("out.zst").frames == 5
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


def test_convert_writes_to_standard_output_and_reads_from_standard_input(there):
    packed = command("convert", "-", "-o", "-", "--log-level", "error", input=b"".join(LINES))
    assert (packed.returncode, packed.stderr) == (0, b"")
    (there / "piped.zst").write_bytes(packed.stdout)
    assert command("-s", "none", "piped.zst").stdout == b"".join(LINES)


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["stream", "--rank", "3", "--world-size", "2", "c.zst"], 64),
        (["stream", "--rank", "0", "--world-size", "0", "c.zst"], 64),
        (["stream", "--no-such-flag"], 64),
        (["stream", "-s", "bogus", "c.zst"], 64),
        (["convert", "c.jsonl", "-o", "no/such/folder/x"], 73),
        (["convert", "c.jsonl", "-o", "x", "-f", "0"], 64),
        (["--seed", "1", "info", "c.zst"], 64),
        (["stream", "no such file"], 66),
        (["info", "c.jsonl"], 70),
        (["stream", "-s", "none", "."], 70),
        ([], 64),
        (["--help"], 0),
        (["convert", "--help"], 0),
    ],
)
def test_exit_codes_are_those_of_the_documentation(there, arguments, code):
    assert command(*arguments).returncode == code


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_exits_77(there):
    (there / "c.jsonl").chmod(0)
    assert run(["-s", "none", "c.jsonl"]) == 77


def test_a_permission_error_maps_to_77():
    from shuflr.cli import exit_code

    assert exit_code(PermissionError()) == 77
    assert exit_code(MemoryError()) == 70


def test_standard_output_carries_data_only(there):
    ran = command("convert", "c.jsonl", "-o", "x.zst", "--progress", "always")
    assert ran.stdout == b"" and b"convert" in ran.stderr
    ran = command("index", "c.jsonl")
    assert ran.stdout == b"" and b"500 records" in ran.stderr


def test_completions_and_manual_pages_name_every_command_and_option(there, capfd):
    for shell in ("bash", "zsh", "fish", "powershell", "elvish"):
        assert run(["completions", shell]) == 0
        script = capfd.readouterr().out
        assert all(name in script for name in COMMANDS) and "frame-size" in script
    for name in COMMANDS:
        assert run(["man", name]) == 0
        assert capfd.readouterr().out.startswith(".TH")
    assert run(["man"]) == 0


def test_the_command_starts_quickly(there):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        command("--version")
        times.append(time.perf_counter() - start)
    assert min(times) < 1  # benchmarks/stream.py holds it to 0.15 s


def test_small_blocks_are_written_together_and_nothing_is_lost(tmp_path):
    with open(tmp_path / "out", "wb") as file:
        out = RecordOutput(file.fileno())
        for size in (1, 200_000, 3, 4, 130_000, 140_000, 5):
            out.write(bytes([size % 251]) * size)
        out.flush()
    want = b"".join(bytes([size % 251]) * size for size in (1, 200_000, 3, 4, 130_000, 140_000, 5))
    assert (tmp_path / "out").read_bytes() == want
    assert stat.S_ISREG((tmp_path / "out").stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's account of a process's memory")
def test_the_memory_of_a_stream_does_not_grow_with_the_file(there):
    with open(there / "large.zst", "wb", buffering=0) as out:
        write_seekable(io.BytesIO(b'{"text":"%s"}\n' % (b"x" * 500) * 150_000), out)
    for mode in ("none", "chunk-shuffled"):
        script = (
            "import sys; from shuflr.cli import run\n"
            f"run(['-s', '{mode}', 'large.zst'])\n"
            "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)"
        )
        with open(os.devnull, "wb") as sink:
            ran = subprocess.run([sys.executable, "-c", script], stdout=sink, stderr=subprocess.PIPE, check=True)
        assert int(ran.stderr.split()[1]) / 1024 < 60
