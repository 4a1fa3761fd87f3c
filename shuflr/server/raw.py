"""Streams of stored frames, which the client decodes and shuffles.

The file is looked at before and after every read; what was sent of a frame that changed under way does not match its
checksum, which goes out last.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from shuflr import core
from shuflr.errors import DatasetChanged
from shuflr.order.seeds import frame_key
from shuflr.records.source import LocalFile
from shuflr.server.memory import Memory
from shuflr.server.plan import Plan, frame_place
from shuflr.server.stream import SendFile, Stream, Write
from shuflr.server.sums import Sums
from shuflr.wire import EpochBoundary, RawFrame, StreamClosed, encode
from shuflr.wire.codec import HEAD, TRAILER

_PIECE = 1 << 18  # bytes of a raw frame that are read, hashed and written at a time


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
        self._buffers = buffers
        self._sums = sums
        self._ready: list[bytes] = []
        self._message: Optional[_Message] = None
        self._complete = False
        epoch, skip, self.resumed_at = plan.start()
        self._begin(epoch, skip, self.resumed_at or 0)

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
        """The records of frames. What nobody has counted yet is decoded, without a turn."""
        counts = self.plan.dataset.counts
        assert counts is not None
        unknown = [frame for frame in frames if not counts.knows(frame)]
        if unknown:
            self.turns.leave()
            try:
                for frame in unknown:
                    counts.records(frame)
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
