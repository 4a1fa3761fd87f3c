"""Every mode of `shuflr stream`, and verify and index, beside `zstd -dc` (and `cat`) on the same JSON lines.

    python benchmarks/stream.py

Prints, for records of 200 B, 1 KiB and 8 KiB: how many times as fast as the yardstick each is, by elapsed and by
processor time (medians of rounds taken in turns), what is required, what the public program reaches by the same
yardstick, and the peak memory. Last, the start-up time of the command.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, Optional

from corpus import SHUFLR, corpus, median, race, ratio, timed


class Row(NamedTuple):
    """A mode: its command behind `shuflr`, its yardstick, and the floors by record size (None: any)."""

    name: str
    command: "list[str]"
    floors: "dict[Optional[int], float]"
    public: str = ""
    yardstick: str = "zstd -dc"


def rows(plain: Path, seekable: Path) -> "list[Row]":
    packed, lines = str(seekable), str(plain)
    return [
        Row("chunk-shuffled, 1 thread", [packed], {None: 1.0}, "0.54-0.63"),
        Row("chunk-shuffled, 2 threads", [packed, "--emit-threads", "2"], {None: 1.9}, "1.5-1.8"),
        Row("none on zstd", ["-s", "none", packed], {None: 1.3}, "1.1"),
        Row("frame-pool:64", ["-s", "frame-pool:64", packed], {None: 0.9}),
        Row("buffer 100k", ["-s", "buffer", packed], {200: 0.7}, "0.44"),
        Row("verify", ["verify", packed], {None: 1.2}, "0.6, unchecked"),
        Row("index-perm on plain", ["-s", "index-perm", lines], {200: 0.5, 1024: 2.0}, "0.27, 1.2"),
        Row("index of plain", ["index", lines], {200: 0.1}, "0.025", "cat"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 1024, 8192])
    options = parser.parse_args()
    missed = []
    print(f"{options.megabytes} MB of JSON lines, to /dev/null, medians of {options.rounds} rounds")
    print(f"{'record':>7} {'mode':<26} {'seconds':>8} {'x':>6} {'by CPU':>7} {'floor':>6} {'public':>15} {'peak':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in options.sizes:
            plain = corpus(folder, size, options.megabytes)
            seekable = folder / f"{size}.jsonl.zst"
            timed([*SHUFLR, "convert", str(plain), "-o", str(seekable)])
            timed([*SHUFLR, "index", str(plain)])
            table = rows(plain, seekable)
            commands = {row.name: [*SHUFLR, *row.command] for row in table}
            commands.update({"zstd -dc": ["zstd", "-dc", str(seekable)], "cat": ["cat", str(plain)]})
            runs = race(commands, options.rounds)
            for row in table:
                wall, cpu = ratio(runs[row.yardstick], runs[row.name])
                floor = row.floors.get(size, row.floors.get(None))
                middle = median(runs[row.name])
                if floor is not None and wall < floor:
                    missed.append(f"{row.name} at {size}")
                print(
                    f"{size:>7} {row.name:<26} {middle.wall:>8.2f} {wall:>6.2f} {cpu:>7.2f} {floor or '':>6} "
                    f"{row.public:>15} {middle.peak:>4.0f} MiB",
                    flush=True,
                )
            for yardstick in ("zstd -dc", "cat"):
                print(f"{size:>7} {yardstick:<26} {median(runs[yardstick]).wall:>8.2f}")
            plain.unlink()
            seekable.unlink()
    start = median([timed([*SHUFLR, "-s", "none", "/dev/null"]) for _ in range(9)]).wall
    print(f"start-up of the command: {1000 * start:.0f} ms (at most 150)")
    if start > 0.150:
        missed.append("start-up")
    print("floors by elapsed time: " + (f"MISSED by {', '.join(missed)}" if missed else "met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
