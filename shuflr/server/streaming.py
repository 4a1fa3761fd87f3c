"""A validated request becomes a stream of bytes that an edge pulls, decoded or raw.

A stream is a pure function of the dataset, the request and how many bytes are out, so it may be stopped, lose its
memory and go on anywhere: what it holds between two calls is a place and a few bytes of an unfinished batch. Nothing
goes out before the file was found unchanged behind the read.

Positions count records as if nobody had stopped: the end of an epoch, and of the stream, report all records from its
beginning, those that a resumed client had before among them.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

from shuflr import core
from shuflr.errors import DatasetChanged, InputError
from shuflr.order.frame_pool import FramePool
from shuflr.order.modes import Options, parse_mode
from shuflr.order.position import Block, Position
from shuflr.order.seeds import frame_key, perm_key
from shuflr.records.sieve import MAX_LINE, Partition
from shuflr.records.source import LocalFile
from shuflr.server.catalog import Catalog, Dataset
from shuflr.server.memory import Lease, Memory
from shuflr.server.sums import Sums
from shuflr.wire import EpochBoundary, RawFrame, StreamClosed, encode
from shuflr.wire.codec import HEAD, TRAILER

Write = Callable[[memoryview], int]
SendFile = Callable[[memoryview, int, int, int], int]

_PIECE = 1 << 18  # bytes of a raw frame that are read, hashed and written at a time
_KNOWN_EPOCHS = 64  # epochs beyond which nobody adds up ranks of different length
BATCH_BYTES = 1 << 18  # a batch is closed when it has so many


class Request(NamedTuple):
    """What a client asks for. epochs 0: endless. sample: records of each epoch. skip: records of the whole stream that
    it has already. fingerprint: what the dataset must be."""

    dataset: str
    seed: int = 0
    shuffle: str = "chunk-shuffled"
    epochs: int = 1
    sample: Optional[int] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None
    skip: Optional[int] = None
    fingerprint: Optional[str] = None


class Plan:
    """A request that can be served: its dataset, its order, and the place to start at.

    Raises UnknownDataset, DatasetChanged, and InputError for what cannot be served."""

    def __init__(self, catalog: Catalog, request: Request) -> None:
        self.request = request
        self.raw = False  # stored frames travel, so records beyond 16 MiB are among those that count
        self.dataset: Dataset = catalog[request.dataset]
        self.mode, options = parse_mode(request.shuffle, Options(seed=request.seed))
        self.partition = self._partition(request)
        self.options = options._replace(partition=self.partition)
        if request.fingerprint not in (None, self.dataset.label):
            raise DatasetChanged(
                f"dataset changed: {request.dataset} is {self.dataset.label} here, not {request.fingerprint}"
            )
        self.dataset.check()
        # The count is compared after a record is out, so 0 gives one; a reservoir is a sample already.
        sampled = request.sample is not None and self.mode != "reservoir"
        self.sample = max(request.sample or 0, 1) if sampled else core.UNBOUNDED

    @staticmethod
    def _partition(request: Request) -> Partition:
        if request.rank is None:
            return Partition()
        return Partition.of(request.rank, request.world_size)

    @property
    def can_be_raw(self) -> bool:
        """Whether stored frames could travel as they are."""
        file = self.dataset.file
        if self.mode != "chunk-shuffled" or file is None:
            return False
        return max(file.table.compressed, default=0) + RawFrame.HEAD.size <= 512 << 20

    def has(self, epoch: int) -> bool:
        """Whether there is such an epoch."""
        return self.request.epochs == 0 or epoch < self.request.epochs

    @property
    def unsuited(self) -> Optional[InputError]:
        """What is wrong when the order needs another kind of file."""
        if self.mode in ("chunk-shuffled", "frame-pool", "index-perm") and self.dataset.file is None:
            return InputError(f"{self.mode} needs seekable zstd, and {self.dataset.id} is {self.dataset.format}")
        return None

    @property
    def skip(self) -> Optional[int]:
        """How many records to skip: None where the server cannot, because fragments of records run on into each other
        and cannot be counted ahead; the client then drops what it has."""
        skip, counts = self.request.skip, self.dataset.counts
        if skip and self.by_frames and not self.raw and counts is not None:
            counts.complete()
            return None if counts.fragments else skip
        return skip

    def frames(self, epoch: int) -> Any:
        """The frames of an epoch in their order, 4 bytes each."""
        file = self.dataset.file
        assert file is not None
        order = core.permutation(perm_key(self.request.seed, epoch), file.frames)
        return order[self.partition.rank :: self.partition.world] if self.partition.world > 1 else order

    @property
    def by_frames(self) -> bool:
        """Whether ranks divide frames, so that their epochs differ in length, and not records."""
        return self.mode in ("chunk-shuffled", "frame-pool")

    def epoch_records(self, epoch: int, sure: bool = False) -> Optional[int]:
        """How many records an epoch gives; None where that is not known yet, unless it must be found out."""
        total: Optional[int] = None
        if self.unsuited is not None:
            return None
        if self.by_frames:
            total = self._by_frames(epoch, sure)
        else:
            total = self.dataset.divided(self.mode, self.partition, sure)
        if total is not None and self.mode == "reservoir":
            total = min(total, self.options.reservoir_size)
        return None if total is None else min(total, self.sample)

    def _by_frames(self, epoch: int, sure: bool) -> Optional[int]:
        counts = self.dataset.counts
        assert counts is not None
        if sure:
            counts.complete()
        if counts.missing or self.partition.world == 1:
            return counts.total(self.raw)
        sums = counts.sums(self.raw)
        return sum(int(sums[frame + 1] - sums[frame]) for frame in self.frames(epoch))

    @property
    def _alike(self) -> bool:
        """Whether all epochs have as many records."""
        return self.partition.world == 1 or not self.by_frames

    @property
    def total_records(self) -> Optional[int]:
        """Records of the whole stream, where they are known and it has an end."""
        epochs, first = self.request.epochs, self.epoch_records(0)
        if epochs == 0 or first is None or not (self._alike or epochs <= _KNOWN_EPOCHS):
            return None
        return first * epochs if self._alike else sum(self.epoch_records(epoch) or 0 for epoch in range(epochs))

    def place_of(self, skip: int) -> "tuple[int, int]":
        """The epoch that holds the record behind `skip` others, and how many of those are in it."""
        epoch = 0
        while skip and self.has(epoch):
            size = self.epoch_records(epoch, sure=True) or 0
            if size > skip or (size == 0 and self.request.epochs == 0):
                break
            passed = 1
            if self._alike and size:
                passed = min(skip // size, (self.request.epochs or core.UNBOUNDED) - epoch)
            epoch, skip = epoch + passed, skip - passed * size
        return epoch, skip


class Lines:
    """Records as they are stored, each with its LF. One without, which only frames that were not cut at records have,
    runs on into the next."""

    def __init__(self) -> None:
        self.open: Any = False  # whether the last record has no LF yet

    def begin(self, epoch: int) -> None:
        """Nothing marks an epoch."""

    def of_frame(self, work: core.Work, limit: int) -> "tuple[memoryview, int]":
        """What the frame in a work area gives, and how many records that begins."""
        view, content = work.gather(limit, False, MAX_LINE, core.SKIP), work.content
        whole = not self.open and (not content or content[len(content) - 1] == 0x0A)
        return view, work.emitted if whole else self._begun(view)

    def of_block(self, work: core.Work, data: Any) -> "tuple[memoryview, int]":
        """The same of a block of records."""
        return memoryview(data), self._begun(memoryview(data))

    def _begun(self, view: memoryview) -> int:
        before = bool(self.open)
        if view:
            self.open = view[len(view) - 1] != 0x0A
        return core.count_lf(view) + bool(self.open) - before

    def end(self, epoch: int, records: int) -> bytes:
        """What follows an epoch."""
        return b""

    def close(self, records: int, epochs: int) -> bytes:
        """What follows the last epoch."""
        return b""


class Batches:
    """Records as messages of the wire: batches, a boundary after each epoch, and the end.

    most_records: of a batch. level: of zstd batches; 0 for plain ones."""

    def __init__(self, most_records: int, level: int = 0) -> None:
        self._batches = core.Batches(most_records, BATCH_BYTES, level)

    @property
    def open(self) -> Any:
        return self._batches.open

    @open.setter
    def open(self, value: Any) -> None:
        self._batches.open = value

    def begin(self, epoch: int) -> None:
        self._batches.begin(epoch)

    def of_frame(self, work: core.Work, limit: int) -> "tuple[memoryview, int]":
        return work.batches(self._batches, limit, False, MAX_LINE, core.SKIP), work.emitted

    def of_block(self, work: core.Work, data: Any) -> "tuple[memoryview, int]":
        work.load(data)
        return work.batches(self._batches), work.emitted

    def end(self, epoch: int, records: int) -> bytes:
        work = core.Work()
        work.load(b"")
        return bytes(work.batches(self._batches, final=True)) + encode(EpochBoundary(epoch, records))

    def close(self, records: int, epochs: int) -> bytes:
        return encode(StreamClosed(records, epochs))


class _Filled(NamedTuple):
    """A block ready to be sent, how many records it has and how many were left out, and what comes behind it."""

    view: memoryview
    records: int
    dropped: int
    place: Position


def frame_place(plan: Plan, epoch: int, frames: Any, skip: int) -> Position:
    """The place of a record of an epoch of chunk-shuffled."""
    counts = plan.dataset.counts
    assert counts is not None
    count, record = counts.records if plan.raw else counts.kept, 0
    for unit, frame in enumerate(frames):
        here = count(frame)
        if record + here > skip:
            return Position(epoch, skip, unit, skip - record)
        record += here
    return Position(epoch, record, len(frames))


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
        self._order = plan.dataset.order(plan.mode, plan.options)
        # A place in compressed text, in a ring or a reservoir is only reached through all before it.
        compressed = plan.mode == "none" and plan.dataset.format not in ("plain", "seekable zstd")
        self.pinned = self._order.replays or compressed
        self._blocks: Optional[Iterator[Block]] = None
        self._next: Optional[Position] = None

    def need(self, place: Position) -> int:
        return self._plan.dataset.held_by(self._plan.mode, self._plan.options)

    def fill(self, place: Position, left: int, form: "Lines | Batches", work: core.Work) -> Optional[_Filled]:
        if self._blocks is None or self._next != place:
            self._plan.dataset.check()
            self._blocks = iter(self._order.epoch(place))
        before = self._order.dropped
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
        return _Filled(view, records, self._order.dropped - before, self._next)

    def start(self, epoch: int, skip: int) -> Position:
        if isinstance(self._order, FramePool):
            return self._pool_place(self._order, epoch, skip)
        if self._plan.mode == "none":
            return self._plan.dataset.sequential_place(self._plan.partition, epoch, skip)
        return Position(epoch, skip)

    def _pool_place(self, order: FramePool, epoch: int, skip: int) -> Position:
        counts = self._plan.dataset.counts
        assert counts is not None
        record = 0
        for number, frames in enumerate(order.pools(epoch)):
            here = sum(counts.kept(frame) for frame in frames)
            if record + here > skip:
                return Position(epoch, skip, number, skip - record)
            record += here
        return Position(epoch, record, core.FRAME_LIMIT)

    def let_go(self) -> None:
        """Drops what the generator holds."""
        self._blocks = None


class Stream:
    """What an edge pulls: `offer` until it returns False. One thread at a time.

    turns: the gate through which the edge came, when it calls `offer`; left while the stream waits or counts.
    records, epochs: sent so far, those that were skipped among the records. bytes: sent. dropped: records beyond 16 MiB
    that were left out. waited: seconds spent waiting for memory."""

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self.plan = plan
        self.turns = memory.turns
        self.records = self.epochs = self.bytes = self.dropped = 0
        self.waited = 0.0
        self.resumed_at = plan.skip
        self.skip_in_frame: Optional[int] = None
        self._sent = 0  # bytes of what is being sent: a block, a frame, or what stands between them

    def offer(self, write: Write, send_file: Optional[SendFile] = None) -> bool:
        """Hands what comes next to write(view), which takes as many bytes as it returns, without blocking; 0 if the
        client takes none now. False when the stream is complete. Called with a turn at `turns`.

        send_file(head, fd, offset, count), where the edge has it, is given stored bytes by their place: it writes the
        head and then from the file, and returns how many bytes of both it wrote.

        Raises DatasetChanged and DataError for a source that cannot be trusted any more, Overloaded."""
        raise NotImplementedError

    @property
    def between(self) -> bool:
        """Whether what is out ends with a message, so that another may follow."""
        return self._sent == 0

    @property
    def in_hand(self) -> bool:
        """Whether something is ready to be written that would have to be made again if the edge waited now."""
        raise NotImplementedError

    def take(self, limit: int) -> bytes:
        """At most `limit` of the bytes that come next; none when the stream is complete. For edges whose writes block:
        meanwhile the stream holds nothing that others could need."""
        taken = b""

        def copy(view: memoryview) -> int:
            nonlocal taken
            taken = bytes(view[:limit])
            return len(taken)

        with self.turns:
            while not taken and self.offer(copy):
                pass
        return taken

    def settle(self) -> None:
        """Makes `records` exact where it was left open to save work."""

    def close(self) -> None:
        """Gives back what the stream holds."""


class BrokenStream(Stream):
    """A stream that fails at its first byte: for edges that promise one before they look at the file."""

    def __init__(self, plan: Plan, memory: Memory, error: Exception) -> None:
        super().__init__(plan, memory)
        self._error = error

    @property
    def in_hand(self) -> bool:
        return False

    def offer(self, write: Write, send_file: Optional[SendFile] = None) -> bool:
        raise self._error


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
        self._begin(*plan.place_of(self.resumed_at or 0), self.resumed_at or 0)

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


class _Message:
    """A raw frame on its way: its head, where its bytes lie, and the checksum over those seen so far."""

    __slots__ = ("digest", "frame", "hashed", "head", "length", "offset", "size", "trailer")

    def __init__(self, frame: int, key: bytes, offset: int, length: int) -> None:
        payload = RawFrame.HEAD.pack(frame, key)
        self.head = HEAD.pack(RawFrame.kind, len(payload) + length) + payload
        self.frame = frame
        self.offset = offset
        self.length = length
        self.size = len(self.head) + length + TRAILER.size
        self.hashed = 0
        self.digest: Optional[core.Xxh3] = None
        self.trailer: Optional[bytes] = None  # when it is known before the frame has been read

    def update(self, piece: memoryview) -> None:
        """Takes in bytes of the message that were not seen yet."""
        self.digest = self.digest or core.Xxh3()
        self.digest.update(piece)
        self.hashed += len(piece)

    def end(self) -> bytes:
        """The checksum of all of it."""
        if self.trailer is None:
            assert self.digest is not None
            self.trailer = TRAILER.pack(self.digest.digest())
        return self.trailer


class RawStream(Stream):
    """Stored frames as they are: nothing is decoded, unless frames that were never counted must be for a sample or the
    end of an epoch.

    With an edge that can send from a file they go from the page cache to the socket; with another, by way of one small
    buffer, which is held while a piece is written and not while the client is waited for."""

    def __init__(self, plan: Plan, memory: Memory, buffers: "Buffers", sums: Optional[Sums] = None) -> None:
        plan.raw = True
        super().__init__(plan, memory)
        self._memory = memory
        self._buffers = buffers
        self._sums = sums
        self._ready: list[bytes] = []
        self._message: Optional[_Message] = None
        self._complete = False
        self._begin(*plan.place_of(self.resumed_at or 0), self.resumed_at or 0)

    def _begin(self, epoch: int, skip: int, records: int) -> None:
        self.epochs = epoch
        self._epoch, self._unit, self._seen = epoch, 0, 0
        self._before = records - skip
        self.records = records
        if not self.plan.has(epoch):
            self._end_stream()
            return
        self._frames = self.plan.frames(epoch)
        if skip:
            place = frame_place(self.plan, epoch, self._frames, skip)
            self._unit, self._seen = place.unit, place.record - place.taken
            self.skip_in_frame = place.taken
            self.records = self._before + self._seen

    @property
    def in_hand(self) -> bool:
        return bool(self._ready) or self._complete

    def offer(self, write: Write, send_file: Optional[SendFile] = None) -> bool:
        if self._ready:
            taken = write(memoryview(self._ready[0])[self._sent :])
            self._count(taken)
            if self._sent == len(self._ready[0]):
                self._ready.pop(0)
                self._sent = 0
            return True
        if self._complete:
            return False
        if self._message is None and not self._next(send_file is not None):
            self._end_epoch()
            return True
        message = self._message
        assert message is not None
        if send_file is not None and message.trailer is not None:
            self._send(message, send_file)
        else:
            with self._buffers.one() as buffer:
                self._count(write(self._piece(message, buffer)))
        if self._sent == message.size:
            self._passed()
        return True

    def _send(self, message: _Message, send_file: SendFile) -> None:
        """Sends from the file what the client takes now, then the checksum."""
        dataset = self.plan.dataset
        assert dataset.file is not None and isinstance(dataset.file.source, LocalFile)
        body_end = len(message.head) + message.length
        if self._sent < body_end:
            head = memoryview(message.head)[self._sent :]
            done = max(self._sent - len(message.head), 0)
            dataset.check()
            self._count(send_file(head, dataset.file.source.fd, message.offset + done, message.length - done))
            dataset.check()
        if self._sent >= body_end:
            # Another frame follows at once, or an epoch's end, and takes the checksum along in its packet.
            rest = memoryview(message.end())[self._sent - body_end :]
            self._count(send_file(rest, dataset.file.source.fd, 0, 0))

    def _count(self, taken: int) -> None:
        self._sent += taken
        self.bytes += taken

    def _next(self, by_file: bool) -> bool:
        """Begins the next frame of the epoch, if there is one and the sample is not reached."""
        if self._unit >= len(self._frames) or self._seen >= self.plan.sample:
            return False
        frame = self._frames[self._unit]
        file = self.plan.dataset.file
        assert file is not None
        key = frame_key(self.plan.request.seed, self._epoch, frame)
        message = _Message(frame, key, file.table.offsets[frame], file.table.compressed[frame])
        sums = self._sums.of(self.plan.dataset, frame) if by_file and self._sums is not None else None
        if sums is not None:
            message.trailer = TRAILER.pack(core.raw_frame_checksum(message.head, sums, message.length))
        self._message = message
        return True

    def _piece(self, message: _Message, buffer: memoryview) -> memoryview:
        """The next bytes of the message, read again as often as the client did not take them."""
        at, head = 0, len(message.head)
        if self._sent < head:
            at = head - self._sent
            buffer[:at] = message.head[self._sent :]
        done = max(self._sent - head, 0)
        want = min(message.length - done, _PIECE)
        if want > 0:
            self._read(message.offset + done, buffer[at : at + want])
            at += want
        fresh = self._sent + at - message.hashed
        if fresh > 0 and message.trailer is None:
            message.update(buffer[at - fresh : at])
        if done + want == message.length:
            trailer = message.end()[max(self._sent - head - message.length, 0) :]
            buffer[at : at + len(trailer)] = trailer
            at += len(trailer)
        return buffer[:at]

    def _read(self, offset: int, into: memoryview) -> None:
        file = self.plan.dataset.file
        assert file is not None
        got = file.source.read_into(into, offset, len(into))
        self.plan.dataset.check()
        if len(got) != len(into):
            raise DatasetChanged(f"dataset changed: the file of {self.plan.dataset.id} is shorter than it was")

    def _passed(self) -> None:
        """The frame is out."""
        self._message, self._sent = None, 0
        counts = self.plan.dataset.counts
        assert counts is not None
        self._unit += 1
        if self.plan.sample < core.UNBOUNDED or not counts.missing:
            self._seen += self._counted(self._frames[self._unit - 1 : self._unit])
            self.records = self._before + self._seen
        self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Has the system read the frame after the next while others have their turns: a turn that waits for a disk is
        a turn lost for all."""
        file = self.plan.dataset.file
        assert file is not None and isinstance(file.source, LocalFile)
        if self._unit + 1 < len(self._frames) and hasattr(os, "posix_fadvise"):
            frame = self._frames[self._unit + 1]
            os.posix_fadvise(
                file.source.fd, file.table.offsets[frame], file.table.compressed[frame], os.POSIX_FADV_WILLNEED
            )

    def _counted(self, frames: Any) -> int:
        """The records of frames. What nobody has counted yet is decoded, with turns of its own for that."""
        counts = self.plan.dataset.counts
        assert counts is not None
        unknown = [frame for frame in frames if not counts.knows(frame)]
        if unknown:
            self.turns.leave()
            try:
                for frame in unknown:
                    with self._memory.turns, self._memory.making() as work:
                        counts.records(frame, work)
            finally:
                self.turns.enter()
        return sum(counts.records(frame) for frame in frames)

    def settle(self) -> None:
        if not self._complete:
            self._seen = self._counted(self._frames[: self._unit])
            self.records = self._before + self._seen

    def _end_epoch(self) -> None:
        self.settle()
        self._ready = [encode(EpochBoundary(self._epoch, self._seen))]
        endless_nothing = self._unit == 0 and self.plan.request.epochs == 0
        self._before = self.records
        self._epoch, self._unit, self._seen = self._epoch + 1, 0, 0
        self.epochs = self._epoch
        if endless_nothing or not self.plan.has(self._epoch):
            self._end_stream()
        else:
            self._frames = self.plan.frames(self._epoch)

    def _end_stream(self) -> None:
        self._ready.append(encode(StreamClosed(self.records, self.epochs)))
        self._complete = True


class Buffers:
    """Buffers for pieces of raw frames: as many as threads have a turn, used again and again."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    @contextmanager
    def one(self) -> Iterator[memoryview]:
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = memoryview(bytearray(_PIECE + 128))
        yield buffer
        self._free.append(buffer)
