"""How well each order mixes a corpus that is sorted by source.

    python benchmarks/quality.py

The corpus: 16 sources of equal size, one after the other, in frames of equal size. For every order, over all its
batches of 512 records: how many distinct frames a batch draws from; its source chi-square per degree of freedom (1 is
what a perfect shuffle gives, 512 a batch from one source) and what `shuflr analyze` forecasts for it; and the lag-1
correlation of neighbours' sources (0 is perfect).
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from shuflr.order import Options, blocks, open_order
from shuflr.order.quality import BATCH, analyze, forecasts
from shuflr.records.seekable import SeekableFile
from shuflr.records.writer import write_seekable

SOURCES = 16
ORDERS = (
    "none", "buffer:10000", "buffer:100000", "chunk-shuffled", "frame-pool:8", "frame-pool:16", "frame-pool:32",
    "frame-pool:64", "frame-pool:128", "index-perm",
)  # fmt: skip


def line(source: int, frame: int, number: int) -> bytes:
    return b"%02d %05d %08d %s\n" % (source, frame, number, bytes([97 + source]) * 30)


def write(path: Path, frames: int, per_frame: int) -> None:
    """Records `source frame filler`, each of the same length, so that frames hold equally many."""
    records = frames * per_frame

    class Lines:
        at = 0
        left = b""

        def readinto(self, buffer: memoryview) -> int:
            if not self.left and self.at < records:
                end = min(self.at + 1000, records)
                self.left = b"".join(line(i * SOURCES // records, i // per_frame, i) for i in range(self.at, end))
                self.at = end
            n = min(len(buffer), len(self.left))
            buffer[:n] = self.left[:n]
            self.left = self.left[n:]
            return n

    with open(path, "wb", buffering=0) as out:
        write_seekable(Lines(), out, frame_size=len(line(0, 0, 0)) * per_frame, threads=2)


def measure(path: Path, order: str) -> "tuple[float, float, float]":
    """Mean distinct frames and chi-square per degree of freedom of the batches; lag-1 correlation of sources."""
    sources: list[int] = []
    frames: list[int] = []
    for block in blocks(open_order(path, order, Options(seed=11, threads=2))):
        for record in bytes(block.data).split(b"\n")[:-1]:
            sources.append(int(record[:2]))
            frames.append(int(record[3:8]))
    distinct, squares = [], []
    for start in range(0, len(sources) - BATCH + 1, BATCH):
        batch = sources[start : start + BATCH]
        distinct.append(len(set(frames[start : start + BATCH])))
        expected = BATCH / SOURCES
        squares.append(sum((batch.count(s) - expected) ** 2 / expected for s in range(SOURCES)) / (SOURCES - 1))
    mean = statistics.fmean(sources)
    spread = sum((s - mean) ** 2 for s in sources)
    lag = sum((a - mean) * (b - mean) for a, b in zip(sources, sources[1:])) / spread
    return statistics.fmean(distinct), statistics.fmean(squares), lag


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=256)
    parser.add_argument("--per-frame", type=int, default=2048, help="records of a frame")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sorted.jsonl.zst")
        write(path, options.frames, options.per_frame)
        file = SeekableFile(path)
        forecast = {row.order: row for row in forecasts(file, analyze(file, 64))}
        print(f"{options.frames} frames of {options.per_frame} records, {SOURCES} sources sorted; batches of {BATCH}")
        print(f"{'order':<16}{'frames':>8}{'chi-square':>12}{'forecast':>10}{'lag-1':>8}")
        found = {}
        for order in ORDERS:
            distinct, square, lag = found[order] = measure(path, order)
            expected = f"{forecast[order].chi_square:.2f}" if order in forecast else ""
            print(f"{order:<16}{distinct:>8.1f}{square:>12.2f}{expected:>10}{lag:>8.3f}", flush=True)
    good = found["frame-pool:64"][0] >= 60 > found["buffer:10000"][0] > found["chunk-shuffled"][0]
    print("frame-pool:64 draws from at least 60 frames, more than a buffer of 10000: " + ("yes" if good else "NO"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
