"""Streams of decoded records. The block in hand is leased, and made again from its place when it was taken back.

Nothing goes out before the file was found unchanged behind the read.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from shuflr import core
from shuflr.order.frame_pool import FramePool
from shuflr.order.position import Block, Order, Position
from shuflr.order.seeds import frame_key
from shuflr.records.sieve import MAX_LINE
from shuflr.server.forms import Batches, Lines
from shuflr.server.memory import Lease, Memory
from shuflr.server.plan import Plan, frame_place
from shuflr.server.stream import SendFile, Stream, Write


class _Filled(NamedTuple):
    """A block ready to be sent, how many records it has and how many were left out, and what comes behind it."""

    view: memoryview
    records: int
    dropped: int
    place: Position


class _Frames:
    """chunk-shuffled: each frame is a block, made from its place alone, and nothing is held between two."""

    lasting = pinned = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._epoch = -1
        self._frames: Any = ()

    def _order(self, epoch: int) -> Any:
        if epoch != self._epoch:
            self._epoch, self._frames = epoch, self._plan.frames(epoch)
        return self._frames

    def need(self, place: Position) -> int:
        """Bytes that the block at a place takes, 0 at the end of its epoch."""
        frames = self._order(place.epoch)
        if place.unit >= len(frames):
            return 0
        table = self._plan.dataset.file.table  # type: ignore[union-attr]
        return int(table.decompressed[frames[place.unit]] * 9 // 8) + (1 << 16)

    def fill(self, place: Position, left: int, form: "Lines | Batches", work: core.Work) -> Optional[_Filled]:
        """The block at a place, of at most `left` records; None at the end of the epoch."""
        frames = self._order(place.epoch)
        if place.unit >= len(frames):
            return None
        dataset, frame = self._plan.dataset, frames[place.unit]
        counts = dataset.counts
        assert counts is not None
        content = dataset.decode(frame, work)
        work.split(frame_key(self._plan.request.seed, place.epoch, frame))
        counts.learn(frame, content, work.records)
        dropped = 0
        if place.taken:
            work.gather(place.taken, False, MAX_LINE, core.SKIP)
            dropped = work.dropped
        view, records = form.of_frame(work, left)
        following = Position(place.epoch, place.record + records, place.unit + 1)
        return _Filled(view, records, work.dropped + dropped, following)

    def start(self, epoch: int, skip: int) -> Position:
        """The place of a record of an epoch."""
        return frame_place(self._plan, epoch, self._order(epoch), skip)

    def let_go(self) -> None:
        """Nothing is held between blocks."""


class _Ordered:
    """Every other order: a generator, which holds its memory from block to block and can be opened again at a place."""

    lasting = True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # index-perm may have to build an index first: that is for when the client has been answered.
        self._opened = None if plan.mode == "index-perm" else plan.dataset.order(plan.mode, plan.options)
        # A place in compressed text, in a ring or a reservoir is only reached through all before it.
        compressed = plan.mode == "none" and plan.dataset.format not in ("plain", "seekable zstd")
        self.pinned = compressed or (self._opened is not None and self._opened.replays)
        self._blocks: Optional[Iterator[Block]] = None
        self._next: Optional[Position] = None

    @property
    def _order(self) -> Order:
        if self._opened is None:
            self._opened = self._plan.dataset.order(self._plan.mode, self._plan.options)
        return self._opened

    def need(self, place: Position) -> int:
        return self._plan.dataset.held_by(self._plan.mode, self._plan.options)

    def fill(self, place: Position, left: int, form: "Lines | Batches", work: core.Work) -> Optional[_Filled]:
        order = self._order
        if self._blocks is None or self._next != place:
            self._plan.dataset.check()
            self._blocks = iter(order.epoch(place))
        before = order.dropped
        try:
            block = next(self._blocks, None)
        except Exception:
            self._plan.dataset.check()
            raise
        self._plan.dataset.check()
        if block is None:
            self._blocks = None
            return None
        if block.records > left:
            block = block.first(left)
        self._next = block.after(block.records)
        view, records = form.of_block(work, block.data)
        return _Filled(view, records, order.dropped - before, self._next)

    def start(self, epoch: int, skip: int) -> Position:
        if isinstance(self._opened, FramePool):
            return self._pool_place(self._opened, epoch, skip)
        if self._plan.mode == "none":
            return self._plan.dataset.sequential_place(self._plan.partition, epoch, skip)
        return Position(epoch, skip)

    def _pool_place(self, order: FramePool, epoch: int, skip: int) -> Position:
        record = 0
        for number, frames in enumerate(order.pools(epoch)):
            here = sum(records for _, records in self._plan.counted(frames))
            if record + here > skip:
                return Position(epoch, skip, number, skip - record)
            record += here
        return Position(epoch, record, core.FRAME_LIMIT)

    def let_go(self) -> None:
        """Drops what the generator holds."""
        self._blocks = None


class DecodedStream(Stream):
    """Records out of decoded blocks, in the form that the edge wants.

    The block in hand is leased: while the edge waits for its client, the lease may be taken back, and the block is made
    again from the place where it began."""

    def __init__(self, plan: Plan, memory: Memory, form: "Lines | Batches") -> None:
        if (unsuited := plan.unsuited) is not None:
            raise unsuited
        super().__init__(plan, memory)
        self._memory = memory
        self._form = form
        self._blocks: _Frames | _Ordered = _Frames(plan) if plan.mode == "chunk-shuffled" else _Ordered(plan)
        self._lease: Optional[Lease] = None
        self._filled: Optional[_Filled] = None
        self._open = form.open  # the batch that was open when the block was begun
        self._ready: list[bytes] = []  # what goes out before the next block
        self._complete = False
        self._before = 0  # records of the epochs before
        epoch, skip, self.resumed_at = plan.start()
        self._begin(epoch, skip, self.resumed_at or 0)

    def _begin(self, epoch: int, skip: int, records: int) -> None:
        """Starts at a record of an epoch, `records` being all before it."""
        self.records = records
        self._before = records - skip
        self.epochs = epoch
        self._place = Position(epoch)
        if not self.plan.has(epoch):
            self._end_stream()
            return
        if skip:
            self._place = self._blocks.start(epoch, skip)
        self._form.begin(epoch)

    @property
    def in_hand(self) -> bool:
        return bool(self._ready) or self._complete or self._filled is not None

    def offer(self, write: Write, send_file: Optional[SendFile] = None) -> bool:
        if self._ready:
            self._offer_ready(write)
            return True
        if self._complete:
            return False
        if self._lease is None:
            self._take_lease()
        lease = self._lease
        assert lease is not None
        with lease as block:
            if block is not None and self._filled is None:
                self._fill(block)
            if block is not None and self._filled is not None:
                rest = self._filled.view[self._sent :]
                taken = write(rest) if rest else 0
                self._sent += taken
                self.bytes += taken
        if lease.block is None:
            self._give_back()
        elif self._filled is None:
            self._end_epoch()
        elif self._sent >= len(self._filled.view):
            self._advance(self._filled)
        return True

    def _offer_ready(self, write: Write) -> None:
        taken = write(memoryview(self._ready[0])[self._sent :])
        self._sent += taken
        self.bytes += taken
        if self._sent == len(self._ready[0]):
            self._ready.pop(0)
            self._sent = 0

    def _take_lease(self) -> None:
        began = time.monotonic()
        need = self._blocks.need(self._place)
        self._lease = self._memory.lease(need, self._blocks.lasting, self._blocks.pinned)
        self._lease.dropped = self._let_go
        self.waited += time.monotonic() - began

    def _fill(self, block: core.BlockMemory) -> None:
        self._form.open = self._open
        left = self.plan.sample - self._place.record
        if left <= 0:
            return
        if not self._blocks.lasting:
            self._make(block, left)
            return
        # A ring that is filled, or a stream that is run again up to a place, may take minutes: not on others' time.
        self.turns.leave()
        try:
            self._make(block, left)
        finally:
            self.turns.enter()

    def _make(self, block: core.BlockMemory, left: int) -> None:
        with self._memory.making() as work:
            block.swap(work)
            try:
                self._filled = self._blocks.fill(self._place, left, self._form, work)
            finally:
                block.swap(work)

    def _let_go(self) -> None:
        """The lease was taken back: what was made in it is gone."""
        self._filled = None
        self._blocks.let_go()

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        self._filled = None
        if lease is not None:
            self._memory.release(lease)

    def _advance(self, filled: _Filled) -> None:
        """The block is out."""
        self._place = filled.place
        self._open = self._form.open
        self._sent = 0
        self._filled = None
        self.records += filled.records
        self.dropped += filled.dropped
        if not self._blocks.lasting or (not self._blocks.pinned and self._memory.wanted):
            self._blocks.let_go()
            self._give_back()

    def _end_epoch(self) -> None:
        self._give_back()
        epoch, records = self._place.epoch, self.records - self._before
        self._form.open = self._open
        self._ready = [self._form.end(epoch, records)]
        self._open = self._form.open
        self._blocks.let_go()
        self.epochs = epoch + 1
        # An endless stream of nothing would never give its client a chance to leave.
        if not self.plan.has(epoch + 1) or (records == 0 and self.plan.request.epochs == 0):
            self._end_stream()
            return
        self._before = self.records
        self._place = Position(epoch + 1)
        self._form.begin(epoch + 1)

    def _end_stream(self) -> None:
        self._ready = [piece for piece in [*self._ready, self._form.close(self.records, self.epochs)] if piece]
        self._complete = True

    def close(self) -> None:
        self._blocks.let_go()
        self._give_back()
