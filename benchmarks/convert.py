"""`shuflr convert` beside `zstd -3` on the same JSON lines, 1 and 2 threads, in the same run.

    python benchmarks/convert.py

Prints, for records of 200 B, 1 KiB and 8 KiB, how many times as fast as the zstd command of as many threads it is, by
elapsed and by processor time (medians of rounds taken in turns), the size beside zstd's, and the peak memory.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from corpus import SHUFLR, corpus, median, race, ratio

FLOOR = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 1024, 8192])
    options = parser.parse_args()
    failed = False
    print(f"{options.megabytes} MB, level 3, medians of {options.rounds} rounds; the public program: 0.96-1.2")
    print(f"{'record':>7} {'threads':>8} {'zstd':>7} {'shuflr':>7} {'x zstd':>7} {'by CPU':>7} {'size':>6} {'peak':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in options.sizes:
            source = corpus(folder, size, options.megabytes)
            for threads in (1, 2):
                theirs, ours = folder / "theirs.zst", folder / "ours.zst"
                runs = race(
                    {
                        "zstd": ["zstd", "-q", "-f", "-3", f"-T{threads}", str(source), "-o", str(theirs)],
                        "shuflr": [*SHUFLR, "convert", str(source), "-o", str(ours), "-T", str(threads)],
                    },
                    options.rounds,
                )
                wall, cpu = ratio(runs["zstd"], runs["shuflr"])
                theirs_now, mine = median(runs["zstd"]), median(runs["shuflr"])
                print(
                    f"{size:>7} {threads:>8} {theirs_now.wall:>6.2f}s {mine.wall:>6.2f}s {wall:>7.2f} {cpu:>7.2f} "
                    f"{ours.stat().st_size / theirs.stat().st_size:>6.3f} {mine.peak:>4.0f} MiB",
                    flush=True,
                )
                failed = failed or wall < FLOOR
            source.unlink()
    print(f"floor {FLOOR} by elapsed time: " + ("MISSED" if failed else "met"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
