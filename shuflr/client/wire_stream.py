"""A stream over shuflr-wire/1. Complete when StreamClosed has come.

Messages are read whole; their checksums are compared, and frames decoded, by whoever unpacks them.
"""

import struct
from typing import Any, Optional

from shuflr import core
from shuflr.client.address import Address
from shuflr.client.connect import ConnectionLost, Reach, connected, lost, wake_reader
from shuflr.client.pieces import Buffers, End, EpochEnd, Item
from shuflr.client.request import Place, Sequence, opening
from shuflr.errors import DataError, StreamError
from shuflr.wire import (
    MAX_PAYLOAD,
    ClientHello,
    Decoder,
    EpochBoundary,
    Heartbeat,
    PlainBatch,
    RawFrame,
    ServerHello,
    StreamClosed,
    StreamOpened,
    WireError,
    ZstdBatch,
    encode,
)
from shuflr.wire import StreamError as ErrorMessage
from shuflr.wire.codec import HEAD, TRAILER
from shuflr.wire.messages import AUTH_BEARER, AUTH_NONE, CAN_CHECKSUM, CAN_RAW, CAN_ZSTD, MODE_RAW, SERVER_SHUTDOWN

_HELLO_LIMIT = 1 << 20
_FIRST = 4096  # enough for a hello, and for the heads of raw frames
_READ = 1 << 20

_CODES = (
    "Unspecified", "MalformedRecord", "OversizedRecord", "IoError", "SlowConsumer", "ServerShutdown", "AuthDenied",
    "ResourceExhausted", "Internal",
)  # fmt: skip


_buffers = Buffers()
_works: "list[core.Work]" = []  # free work areas
_MOST_WORKS = 4


def _work() -> core.Work:
    """A work area that nobody uses."""
    try:
        return _works.pop()
    except IndexError:
        return core.Work()


def _free(work: core.Work) -> None:
    if len(_works) < _MOST_WORKS:
        _works.append(work)


def _damaged(what: str) -> ConnectionLost:
    return ConnectionLost(f"wire decode: {what} does not match its checksum: bytes were damaged on the way")


class _Frame:
    """A raw frame's message as it came, then its decoded frame."""

    __slots__ = ("_buffer", "_size", "_work")

    def __init__(self, buffer: bytearray, size: int) -> None:
        self._buffer = buffer
        self._size = size
        self._work: Optional[core.Work] = None

    def prepare(self) -> None:
        view = memoryview(self._buffer)
        whole = view[: self._size - TRAILER.size]
        if core.xxh3(whole) != TRAILER.unpack_from(view, self._size - TRAILER.size)[0]:
            raise _damaged("a raw frame")
        frame, key = RawFrame.HEAD.unpack_from(view, HEAD.size)
        self._work = _work()
        try:
            self._work.decode(whole[HEAD.size + RawFrame.HEAD.size :], limit=core.FRAME_LIMIT, what="its frame")
            self._work.split(key)
        except DataError as error:
            raise StreamError(f"raw-frame decode (frame_id={frame}): {error}") from error
        del view, whole
        _buffers.give(self._buffer)

    def records(self) -> "list[bytes]":
        work, self._work = self._work, None
        assert work is not None
        listed = work.listed()
        _free(work)
        return listed


class _Compressed:
    """A zstd batch's message, checked."""

    __slots__ = ("_batch", "_work")

    def __init__(self, batch: ZstdBatch) -> None:
        self._batch = batch
        self._work = _work()

    def prepare(self) -> None:
        try:
            self._work.decode(self._batch.data, limit=MAX_PAYLOAD, what="a batch")
        except DataError as error:
            raise self._failed(error) from error

    def records(self) -> "list[bytes]":
        try:
            listed = core.prefixed(self._work.content, self._batch.records)
        except DataError as error:
            raise self._failed(error) from error
        _free(self._work)
        return listed

    def _failed(self, error: DataError) -> StreamError:
        return StreamError(f"zstd-batch decode (batch {self._batch.batch}): {error}")


class _Batches:
    """Messages with plain batches, one behind the other, in memory of their own."""

    __slots__ = ("_buffer", "_size", "_start")

    def __init__(self, buffer: bytearray, start: int, size: int) -> None:
        self._buffer = buffer
        self._start = start
        self._size = size

    def prepare(self) -> None:
        """Nothing: the checksums are compared as the records are made, which costs next to nothing beside that."""

    def records(self) -> "list[bytes]":
        try:
            listed, _ = core.batched(memoryview(self._buffer)[self._start : self._start + self._size])
        except DataError as error:
            raise ConnectionLost(f"wire decode: {error}") from error
        _buffers.give(self._buffer)
        return listed


class WireStream:
    """One connection, opened by its hello."""

    marked = True

    def __init__(self, address: Address, sequence: Sequence, place: Place, reach: Reach) -> None:
        self.transport = address.scheme.transport
        self._url = address.url
        self._sock = connected(address, reach)
        self._buffer = bytearray(_FIRST)
        self._start = self._end = 0
        self.received = 0
        try:
            hello = self._greeted(sequence, place, reach)
        except BaseException:
            self._sock.close()
            raise
        self._sock.settimeout(reach.read_timeout)
        opened = StreamOpened.parse(hello.opened)
        self.fingerprint: Optional[str] = opened.fingerprint if opened else None
        self.resumed_at = (opened.resumed_at if opened else None) or 0
        self.drop = place.records - self.resumed_at + ((opened.skip_in_frame if opened else None) or 0)
        self.total = opened.total_records if opened else None
        self.exact = hello.mode != MODE_RAW
        self.weight = 2 * _READ if self.exact else 3 << 20
        # Of a raw stream only a head is read ahead: its frames go straight into memory of their own.
        self._ahead = HEAD.size if hello.mode == MODE_RAW else _READ

    def _greeted(self, sequence: Sequence, place: Place, reach: Reach) -> ServerHello:
        can = CAN_RAW | CAN_CHECKSUM | (CAN_ZSTD if reach.mode == "zstd-batch" else 0)
        token = reach.auth_token.encode() if reach.auth_token is not None else None
        hello = ClientHello(
            opening(sequence, place, reach.mode), can, AUTH_NONE if token is None else AUTH_BEARER, token or b""
        )
        try:
            self._sock.sendall(encode(hello))
            self._need(HEAD.size, HEAD.size)
            kind, size = HEAD.unpack_from(self._buffer)
            if kind == 0 and size <= _HELLO_LIMIT:
                self._need(HEAD.size + size, HEAD.size + size)
        except ConnectionLost as error:
            if error.silent:
                raise
            raise ConnectionLost(f"{self._url}: connection closed before ServerHello") from error
        except OSError as error:
            raise lost(f"{self._url}: opening the stream", error) from error
        answer = self._parsed()
        if not isinstance(answer, ServerHello):
            raise StreamError(f"{self._url}: this server does not begin with a hello of shuflr-wire/1")
        if answer.status != 0:
            raise StreamError(f"server rejected handshake: {answer.opened.decode('utf-8', 'replace')}")
        return answer

    def _parsed(self) -> Any:
        """The message at the beginning of the buffer, as a value."""
        decoder = Decoder(ServerHello)
        try:
            decoder.feed(memoryview(self._buffer)[self._start : self._end])
            message = decoder.next()
        except WireError as error:
            raise ConnectionLost(f"wire decode: {error}") from error
        self._start = self._end - decoder.pending
        return message

    def _need(self, size: int, most: int) -> None:
        """Reads until the buffer holds `size` bytes, and as far as `most` if they are there."""
        if len(self._buffer) - self._start < size:
            grown = self._buffer if len(self._buffer) >= size else bytearray(size + size // 8)
            held = self._end - self._start
            grown[:held] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = grown, 0, held
        while self._end - self._start < size:
            stop = min(len(self._buffer), self._start + max(size, most))
            got = self._receive_into(memoryview(self._buffer)[self._end : stop])
            self._end += got

    def _receive_into(self, room: memoryview) -> int:
        try:
            got: int = self._sock.recv_into(room)
        except OSError as error:
            raise lost(f"wire read: {self._url}", error) from error
        if got == 0:
            raise ConnectionLost(f"wire read: {self._url}: the connection closed before the stream's end")
        self.received += got
        return got

    def receive(self) -> Item:
        while True:
            self._need(HEAD.size, self._ahead)
            kind, length = HEAD.unpack_from(self._buffer, self._start)
            if length > MAX_PAYLOAD:
                raise ConnectionLost(f"wire decode: a message of {length} bytes is beyond the {MAX_PAYLOAD} allowed")
            size = HEAD.size + length + TRAILER.size
            if kind == RawFrame.kind:
                return self._frame(size)
            if kind == PlainBatch.kind:
                return self._batches(size)
            self._need(size, size)
            message = self._parsed()
            if isinstance(message, ZstdBatch):
                return _Compressed(ZstdBatch(message.batch, message.epoch, message.records, bytes(message.data)))
            if isinstance(message, EpochBoundary):
                return EpochEnd(message.records)
            if isinstance(message, StreamClosed):
                return End(message.records)
            if isinstance(message, ErrorMessage):
                raise self._failure(message)
            if not isinstance(message, Heartbeat):
                raise StreamError(f"unexpected server message kind={type(message).__name__}")

    def _frame(self, size: int) -> _Frame:
        """A message in memory of its own."""
        if size < HEAD.size + RawFrame.HEAD.size + TRAILER.size:
            raise ConnectionLost("wire decode: a raw frame that is too short")
        held = min(self._end - self._start, size)
        buffer = _buffers.take(size)
        buffer[:held] = self._buffer[self._start : self._start + held]
        self._start += held
        view = memoryview(buffer)
        while held < size:
            held += self._receive_into(view[held:size])
        return _Frame(buffer, size)

    def _batches(self, size: int) -> _Batches:
        """The whole messages with batches that are here, at least the first, of `size` bytes."""
        self._need(size, max(size, self._ahead))
        at = self._start + size
        while self._end - at >= HEAD.size:
            kind, length = HEAD.unpack_from(self._buffer, at)
            if kind != PlainBatch.kind or length > self._end - at - HEAD.size - TRAILER.size:
                break
            at += HEAD.size + length + TRAILER.size
        # The messages keep the memory that they came in; what follows them moves to the next.
        piece, used, rest = self._buffer, at, memoryview(self._buffer)[at : self._end]
        fresh = _buffers.take(max(_READ, len(rest)))
        fresh[: len(rest)] = rest
        start, self._buffer, self._start, self._end = self._start, fresh, 0, len(rest)
        return _Batches(piece, start, used - start)

    def _failure(self, message: ErrorMessage) -> StreamError:
        sentence = (
            f"server StreamError code={_CODES[message.code]} fatal={str(message.fatal).lower()} detail={message.detail}"
        )
        if message.code == SERVER_SHUTDOWN:
            return ConnectionLost(sentence)
        return StreamError(sentence)

    def fileno(self) -> int:
        return int(self._sock.fileno())

    @property
    def pending(self) -> bool:
        held = self._end - self._start
        if held >= HEAD.size:
            (length,) = struct.unpack_from("<I", self._buffer, self._start + 1)
            if held >= HEAD.size + length + TRAILER.size:
                return True
        return bool(hasattr(self._sock, "pending") and self._sock.pending())

    def interrupt(self) -> None:
        wake_reader(self._sock)

    def close(self) -> None:
        self._sock.close()
