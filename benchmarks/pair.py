"""Our client from our server, one stream, beside `zstd -dc` on the same file in the same run.

    python benchmarks/pair.py            raw frames, plain batches and HTTP x 200 B, 1 KiB, 8 KiB; two minutes
    python benchmarks/pair.py --short    one round of a little of each, without a verdict on speed

Prints records/s (the median of rounds in which all take turns), the same by the yardstick, and what the published
client and server reached by it: records/s x bytes of a record / the bytes/s of `zstd -dc` to /dev/null. `split` is what
a loop over `zstd -dc` and a split at LF in Python gives, for comparison. Required by the yardstick, in multiples of the
published pair: 2 for raw frames, 2 (200 B) and 1.4 (1 KiB) for plain batches, 1.1 for HTTP.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Optional

from corpus import SHUFLR, corpus, timed
from serving import serving

HERE = Path(__file__).resolve().parent
SIZES = (200, 1024, 8192)
# The published pair's records/s by form and size, on a machine where `zstd -dc` gave these bytes/s.
ZSTD = {200: 335e6, 1024: 351e6, 8192: 302e6}
PUBLISHED = {
    "raw": {200: 689e3, 1024: 172e3, 8192: 21e3},
    "plain": {200: 554e3, 1024: 208e3, 8192: 62e3},
    "http": {200: 1.29e6, 1024: 321e3, 8192: 61e3},
}
TIMES: dict[str, dict[int, Optional[float]]] = {
    "raw": {200: 2.0, 1024: 2.0, 8192: 2.0},
    "plain": {200: 2.0, 1024: 1.4},
    "http": {200: 1.1, 1024: 1.1, 8192: 1.1},
}
NAMES = {"raw": "raw frames", "plain": "plain batches", "http": "HTTP"}


def split(path: Path) -> float:
    """Seconds of a loop over every line of what `zstd -dc` writes."""
    began = time.perf_counter()
    with subprocess.Popen(["zstd", "-dc", str(path)], stdout=subprocess.PIPE, bufsize=1 << 20) as process:
        assert process.stdout is not None
        rest = b""
        while block := process.stdout.read(1 << 20):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            for _ in lines:
                pass
    return time.perf_counter() - began


def one(url: str, epochs: int, shuffle: str) -> dict[str, float]:
    """What a process that iterates one stream says of it."""
    command = [sys.executable, str(HERE / "iterate.py"), "shuflr", url, str(epochs), "--shuffle", shuffle]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-3000:])
    answer: dict[str, float] = json.loads(ran.stdout)
    return answer


def compare(size: int, path: Path, content: int, rounds: int, epochs: int, judged: bool) -> list[str]:
    """Prints the lines of one record size; what falls short."""
    zstd, plain_split = [], []
    runs: dict[str, list[dict[str, float]]] = {form: [] for form in NAMES}
    with serving({"d": path}) as server:
        for turn in range(rounds + 1):
            zstd.append(timed(["zstd", "-dc", str(path)]).wall)
            plain_split.append(split(path))
            for form in NAMES:
                url = server.url("http" if form == "http" else "wire", "d")
                runs[form].append(one(url, epochs, "none" if form == "plain" else "chunk-shuffled"))
            if turn == 0:  # the first counts the records and fills the caches
                for figures in (zstd, plain_split, *runs.values()):
                    figures.clear()
    records = int(runs["raw"][0]["records"])
    mean = epochs * content / records
    yardstick, by_split = content / statistics.median(zstd), content / mean / statistics.median(plain_split)
    short = []
    for form, of_form in runs.items():
        rate = records / statistics.median(each["wall"] for each in of_form)
        reached, published = rate * mean / yardstick, PUBLISHED[form][size] * size / ZSTD[size]
        times, floor = reached / published, TIMES[form].get(size)
        print(
            f"{NAMES[form]:<14} {size:>6} {rate:>11,.0f} {rate * mean / 1e6:>6.0f} {reached:>12.2f} {published:>10.2f} "
            f"{times:>6.2f} {floor or '':>6} {yardstick / 1e6:>8.0f} {by_split:>11,.0f}",
            flush=True,
        )
        if judged and floor is not None and times < floor:
            short.append(f"{NAMES[form]} at {size}: {times:.2f} times the published pair")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--megabytes", type=int, default=200, help="of a dataset, read twice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    megabytes, rounds = (8, 1) if options.short else (options.megabytes, options.rounds)
    short = []
    print(f"{megabytes} MB a dataset, medians of {rounds} rounds; columns by the yardstick are parts of `zstd -dc`")
    print(
        f"{'form':<14} {'record':>6} {'records/s':>11} {'MB/s':>6} {'by yardstick':>12} {'published':>10} {'times':>6} "
        f"{'floor':>6} {'zstd -dc':>8} {'split/s':>11}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in options.sizes:
            plain = corpus(folder, size, megabytes)
            path = folder / f"{size}.jsonl.zst"
            timed([*SHUFLR, "convert", str(plain), "-o", str(path)])
            content = plain.stat().st_size
            plain.unlink()
            short += compare(size, path, content, rounds, 2, not options.short)
            path.unlink()
    for line in short:
        print("short:", line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
