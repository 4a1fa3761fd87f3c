"""`chunk-shuffled`: frames in random order, and the records of each in random order. One frame of memory a thread.

A position is a frame's place in the order and how many of its records are out: starting there costs one frame.
"""

from collections.abc import Iterator
from typing import NamedTuple, Optional

from shuflr import core
from shuflr.errors import OversizedRecord
from shuflr.order.position import Block, Configured, Position
from shuflr.order.seeds import frame_key, perm_key
from shuflr.records.pipeline import in_order
from shuflr.records.seekable import SeekableFile
from shuflr.records.sieve import Limits, Partition


def frame_order(seed: int, epoch: int, frames: int, partition: Partition) -> "list[int]":
    """The frames of a rank in the order of an epoch."""
    order = core.permutation(perm_key(seed, epoch), frames)
    return list(order[partition.rank :: partition.world])


class _Gathered(NamedTuple):
    data: memoryview
    records: int
    dropped: int
    refused: Optional[OversizedRecord]


class ChunkShuffled(Configured):
    """The default order of a seekable file."""

    mode = "chunk-shuffled"
    replays = False

    def __init__(
        self, file: SeekableFile, seed: int, limits: Limits, partition: Partition, threads: int = 1, ahead: int = 2
    ) -> None:
        super().__init__(file, seed, limits, partition)
        self._file = file
        self._threads = threads
        self._ahead = ahead

    def epoch(self, start: Position) -> Iterator[Block]:
        frames = frame_order(self.seed, start.epoch, self._file.frames, self._partition)
        skip = {start.unit: start.taken}

        def gather(unit: int, work: core.Work) -> _Gathered:
            key = frame_key(self.seed, start.epoch, frames[unit])
            return self._gather(frames[unit], key, skip.get(unit, 0), work)

        record = start.record
        units = range(start.unit, len(frames))
        for unit, out in zip(units, in_order(units, gather, self._threads, self._ahead)):
            self.dropped += out.dropped
            if out.records:
                yield Block(out.data, Position(start.epoch, record, unit, skip.get(unit, 0)), out.records)
            if out.refused is not None:
                raise out.refused
            record += out.records

    def _gather(self, frame: int, key: bytes, skip: int, work: core.Work) -> _Gathered:
        """The records of a frame behind the first `skip` that were handed out before."""
        refused = None
        dropped = 0
        cap, policy = self._limits
        try:
            if skip:
                self._file.shuffled(frame, key, work, limit=skip, max_line=cap, policy=policy)
                work.gather(max_line=cap, policy=policy)
            else:
                self._file.shuffled(frame, key, work, max_line=cap, policy=policy)
            dropped = work.dropped
        except OversizedRecord as error:
            refused = error
        return _Gathered(work.block, work.emitted, dropped, refused)
