"""Decode + shuffle + gather of 2 MiB frames, beside plain ZSTD_decompressDCtx on the same frames in the same run.

    python benchmarks/frames.py

Prints, for records of 200 B, 1 KiB and 8 KiB: MB/s of decoded content for plain decoding, for the whole frame with one
thread (and as a part of plain decoding), the same with its XXH64 checked, and with two threads (as a multiple of one).
Figures are medians over rounds in which the candidates take turns.
"""

import argparse
import os
import statistics
import sys
import threading
import time

from corpus import sentences

from shuflr import core

FRAME = 2 << 20
SIZES = (200, 1024, 8192)
FLOORS = {200: 0.78, 1024: 0.84, 8192: 0.88}


def frames_of(lines: "list[bytes]") -> "list[tuple[bytes, int, int]]":
    """Compressed bytes, decoded size and checksum of each whole frame."""
    work, frames, pending, size = core.Work(), [], [], 0
    for line in lines:
        pending.append(line)
        size += len(line)
        if size >= FRAME:
            compressed, checksum = work.compress(b"".join(pending), 3)
            frames.append((bytes(compressed), size, checksum))
            pending, size = [], 0
    return frames


def seconds(task: "object", *arguments: object) -> float:
    start = time.perf_counter()
    task(*arguments)  # type: ignore[operator]
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=12, help="distinct frames of each record size")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    key = bytes(range(32))
    works = [core.Work(), core.Work()]
    target = core.ffi.new("uint8_t[]", FRAME * 2)
    failed = False

    def plain(frames: "list[tuple[bytes, int, int]]") -> None:
        for data, size, _ in frames:
            works[0].decode_into(data, target, size)

    def whole(work: core.Work, frames: "list[tuple[bytes, int, int]]", kind: int) -> None:
        for data, size, checksum in frames:
            work.frame(data, size, checksum, kind, key)

    def two_threads(frames: "list[tuple[bytes, int, int]]") -> None:
        half = len(frames) // 2
        threads = [
            threading.Thread(target=whole, args=(work, part, core.UNCHECKED))
            for work, part in zip(works, (frames[:half], frames[half:]))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    print(f"{os.cpu_count()} cores; MB/s of decoded content, medians of {options.rounds} rounds")
    heads = ("plain", 8), ("frame", 8), ("part", 9), ("checked", 8), ("part", 9), ("2 threads", 10), ("x one", 6)
    print(f"{'record':>8} " + " ".join(f"{text:>{width}}" for text, width in heads))
    for size in SIZES:
        frames = frames_of(sentences(size, FRAME * (options.frames + 1)))
        total = sum(decoded for _, decoded, _ in frames)
        rows: dict[str, list[float]] = {"plain": [], "frame": [], "checked": [], "two": []}
        for _ in range(options.rounds):
            rows["plain"].append(seconds(plain, frames))
            rows["frame"].append(seconds(whole, works[0], frames, core.UNCHECKED))
            rows["checked"].append(seconds(whole, works[0], frames, core.XXH64))
            rows["two"].append(seconds(two_threads, frames))
        median = {name: statistics.median(times) for name, times in rows.items()}
        part = statistics.median(p / f for p, f in zip(rows["plain"], rows["frame"]))
        checked = statistics.median(p / f for p, f in zip(rows["plain"], rows["checked"]))
        twice = statistics.median(f / t for f, t in zip(rows["frame"], rows["two"]))
        speed = {name: total / 1e6 / time_taken for name, time_taken in median.items()}
        print(
            f"{size:>8} {speed['plain']:>8.0f} {speed['frame']:>8.0f} {part:>9.2f} {speed['checked']:>8.0f} "
            f"{checked:>9.2f} {speed['two']:>10.0f} {twice:>6.2f}"
        )
        failed = failed or part < FLOORS[size] or twice < 1.8
    print("floors: frame of plain 0.78, 0.84, 0.88; two threads 1.8: " + ("MISSED" if failed else "met"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
