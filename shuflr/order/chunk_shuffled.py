"""`chunk-shuffled`: frames in random order, and the records of each in random order. One frame of memory a thread.

A position is a frame's place in the order and how many of its records are out: starting there costs one frame.
"""

from collections.abc import Iterator
from functools import partial
from typing import Callable, NamedTuple, Optional

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
    """The default order of a seekable file.

    threads, ahead: as in `pipeline.in_order`. overlap: one thread decodes and leaves the rest to the caller's; several
    do whole frames each, overlap or not."""

    mode = "chunk-shuffled"
    replays = False

    def __init__(
        self,
        file: SeekableFile,
        seed: int,
        limits: Limits,
        partition: Partition,
        threads: int = 1,
        ahead: int = 2,
        overlap: bool = False,
    ) -> None:
        super().__init__(file, seed, limits, partition)
        self._file = file
        self._threads = threads
        self._ahead = ahead
        self._shared = overlap and threads == 1

    def epoch(self, start: Position) -> Iterator[Block]:
        frames = frame_order(self.seed, start.epoch, self._file.frames, self._partition)
        skip = {start.unit: start.taken}
        record = start.record
        units = range(start.unit, len(frames))
        for unit, out in zip(units, self._blocks(start.epoch, frames, units, skip)):
            self.dropped += out.dropped
            if out.records:
                yield Block(out.data, Position(start.epoch, record, unit, skip.get(unit, 0)), out.records)
            if out.refused is not None:
                raise out.refused
            record += out.records

    def _blocks(
        self, epoch: int, frames: "list[int]", units: range, skip: "dict[int, int]"
    ) -> Iterator[_Gathered]:
        """What each frame gives behind the records of it that were handed out before."""

        def key(unit: int) -> bytes:
            return frame_key(self.seed, epoch, frames[unit])

        def whole(unit: int, work: core.Work) -> _Gathered:
            return self._gather(partial(self._file.shuffled, frames[unit], key(unit), work), skip.get(unit, 0), work)

        def decode(unit: int, work: core.Work) -> core.Work:
            self._file.decode_unchecked(frames[unit], work)
            return work

        if not self._shared:
            yield from in_order(units, whole, self._threads, self._ahead)
            return
        for unit, work in zip(units, in_order(units, decode, self._threads, self._ahead, threaded=True)):
            self._file.check(frames[unit], work.content)
            work.split(key(unit))
            yield self._gather(work.gather, skip.get(unit, 0), work)

    def _gather(self, gather: Callable[..., memoryview], skip: int, work: core.Work) -> _Gathered:
        """The records of a frame behind the first `skip`, which `gather` (limit, max_line, policy) begins to give."""
        refused = None
        dropped = 0
        cap, policy = self._limits
        try:
            gather(limit=skip or core.UNBOUNDED, max_line=cap, policy=policy)
            if skip:
                work.gather(max_line=cap, policy=policy)
            dropped = work.dropped
        except OversizedRecord as error:
            refused = error
        return _Gathered(work.block, work.emitted, dropped, refused)
