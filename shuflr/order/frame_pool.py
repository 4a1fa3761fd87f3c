"""`frame-pool:K`: K frames open at a time, and records drawn uniformly from all that they still hold.

The frames of an epoch, in the random order of `chunk-shuffled`, are dealt into pools of at most K, as even as possible,
and the records of a pool are one permutation. So a batch draws from about as many frames as a pool has, every frame
is read once and whole, and a place is a pool's number and a count: nothing has to be replayed to get there.

Memory: K decoded frames and 12 bytes for each of their records.
"""

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.errors import InputError, OversizedRecord
from shuflr.order.chunk_shuffled import frame_order
from shuflr.order.position import Block, Configured, Position
from shuflr.order.seeds import pool_key
from shuflr.records.pipeline import in_order
from shuflr.records.seekable import SeekableFile
from shuflr.records.sieve import Limits, Partition

_BLOCK = 1 << 20
_SLACK = 64  # what the core's copies may touch behind a buffer

# Uncleared: frames are decoded over it. Huge pages were tried for it and cost more in the kernel than they saved here.
_allocate = ffi.new_allocator(should_clear_after_alloc=False)


class _Drawn(NamedTuple):
    """Consecutive records of a pool's permutation; `refused` is the start and length of one that ended them."""

    data: memoryview
    records: int
    dropped: int
    refused: "Optional[tuple[int, int]]"


class _Pool:
    """The decoded frames of one pool, one behind the other, and the permutation of their records."""

    def __init__(self, arena: Any, ends: "array[int]", order: "array[int]", limits: Limits) -> None:
        self.size = len(ends)
        mean = ends[-1] // len(ends) if ends else 0
        self.step = max(1, _BLOCK // (mean + 1))  # records that make a block
        self._arena = arena
        self._ends = ffi.from_buffer("uint64_t[]", ends) if ends else ffi.NULL
        self._order = ffi.from_buffer("uint32_t[]", order) if order else ffi.NULL
        self._limits = limits

    def gather(self, places: "tuple[int, int]", work: core.Work) -> _Drawn:
        """The records at those places of the permutation, in the work area's buffer."""
        numbers = ffi.new("uint64_t[5]")  # done, emitted, dropped, and the refused record's start and length
        done, emitted, dropped, bad = (ffi.addressof(numbers, i) for i in range(4))
        out_len = ffi.new("size_t *")
        first, end = places
        room = 2 * _BLOCK
        while True:
            out = work.room(room)
            status = lib.shuflr_arena_gather(
                self._arena, self._ends, self._order, first, end, 0, *self._limits, core.pointer(out), len(out),
                out_len, done, emitted, dropped, bad,
            )  # fmt: skip
            if numbers[0] == end or status != lib.SHUFLR_OK:
                break
            room = 2 * len(out)
        refused = (int(numbers[3]), int(numbers[4])) if status == lib.SHUFLR_OVERSIZED else None
        if refused is None:
            core.check(status)
        return _Drawn(memoryview(out)[: out_len[0]], int(numbers[1]), int(numbers[2]), refused)


class FramePool(Configured):
    """Between `chunk-shuffled` and a full permutation, at the cost of K frames of memory."""

    mode = "frame-pool"
    replays = False

    def __init__(
        self,
        file: SeekableFile,
        size: int,
        seed: int,
        limits: Limits,
        partition: Partition,
        threads: int = 1,
        overlap: bool = False,
    ) -> None:
        if size < 1:
            raise InputError(f"a frame pool holds at least 1 frame, not {size}")
        super().__init__(file, seed, limits, partition)
        self._file = file
        self._size = size
        self._threads = threads
        self._overlap = overlap

    @property
    def parameters(self) -> "dict[str, int]":
        return {"size": self._size, **super().parameters}

    def pools(self, epoch: int) -> "list[list[int]]":
        """The frames of each pool of an epoch."""
        frames = frame_order(self.seed, epoch, self._file.frames, self._partition)
        count = -(-len(frames) // self._size)
        cuts = [pool * len(frames) // count for pool in range(count + 1)] if count else [0]
        return [frames[start:end] for start, end in zip(cuts, cuts[1:])]

    def epoch(self, start: Position) -> Iterator[Block]:
        pools = self.pools(start.epoch)
        sizes = self._file.table.decompressed
        room = max((sum(sizes[frame] for frame in frames) for frames in pools[start.unit :]), default=0)
        arena = _allocate("uint8_t[]", room + _SLACK)
        record, skip = start.record, start.taken
        for number in range(start.unit, len(pools)):
            pool = self._open(pools[number], pool_key(self.seed, start.epoch, self._size, number), arena)
            for drawn in self._draw(pool, skip):
                self.dropped += drawn.dropped
                if drawn.records:
                    yield Block(drawn.data, Position(start.epoch, record, number, skip), drawn.records)
                if drawn.refused is not None:
                    raise OversizedRecord(*drawn.refused, self._limits.max_line)
                record += drawn.records
                skip += drawn.records
            skip = 0

    def _open(self, frames: "list[int]", key: bytes, arena: Any) -> _Pool:
        """Decodes and checks the frames, side by side with several threads, and orders their records."""
        sizes = [self._file.table.decompressed[frame] for frame in frames]
        bases = [sum(sizes[:i]) for i in range(len(sizes))]

        def place(i: int, work: core.Work) -> core.Work:
            self._file.place(frames[i], work, arena + bases[i])
            return work

        ends: array[int] = array("Q")
        jobs = range(len(frames))
        for i, work in zip(jobs, in_order(jobs, place, self._threads, threaded=self._overlap)):
            ends.frombytes(self._file.placed(frames[i], work, arena + bases[i], bases[i]))
        if len(ends) > core.FRAME_LIMIT:
            raise InputError("a pool of more than 2^32-1 records; use a smaller one")
        return _Pool(arena, ends, core.permutation(key, len(ends)), self._limits)

    def _draw(self, pool: _Pool, skip: int) -> Iterator[_Drawn]:
        """Blocks of the pool's records behind the first `skip`, which were handed out before."""
        first, work = 0, core.Work()
        while skip and first < pool.size:
            end = min(first + min(skip, pool.step), pool.size)
            skip -= pool.gather((first, end), work).records
            first = end
        ranges = ((i, min(i + pool.step, pool.size)) for i in range(first, pool.size, pool.step))
        yield from in_order(ranges, pool.gather, max(self._threads, 1 + self._overlap))
