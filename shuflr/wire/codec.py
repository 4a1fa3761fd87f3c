"""Framing: `kind u8 | payload length u32 | payload | xxh3 u64`, the checksum over all before it and absent for hellos.

Nothing that a peer announces is believed before it has arrived: an unknown kind and a length beyond the cap are errors
as soon as they are seen, and memory grows with the bytes received, at most twofold.
"""

import struct
from typing import Any, Optional, Union

from shuflr import core
from shuflr.wire.messages import (
    MAX_PAYLOAD,
    AddCredit,
    Bytes,
    Cancel,
    ClientHello,
    EpochBoundary,
    Heartbeat,
    Message,
    PlainBatch,
    Pong,
    RawFrame,
    ServerHello,
    StreamClosed,
    StreamError,
    WireError,
    ZstdBatch,
)

HEAD = struct.Struct("<BI")
TRAILER = struct.Struct("<Q")
HELLO = 0

_BY_KIND: "dict[int, Any]" = {
    message.kind: message
    for message in (
        RawFrame, ZstdBatch, PlainBatch, EpochBoundary, StreamError, StreamClosed, Heartbeat, AddCredit, Cancel, Pong,
    )
}  # fmt: skip
_FIRST = 4096


def encode(message: Message) -> bytes:
    """The bytes of a message. Raises WireError for one beyond the cap."""
    payload = message.payload()
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a message of {len(payload)} bytes is beyond the {MAX_PAYLOAD} that the protocol allows")
    framed = HEAD.pack(message.kind, len(payload)) + payload
    return framed if message.kind == HELLO else framed + TRAILER.pack(core.xxh3(framed))


class Decoder:
    """Messages out of bytes that come in pieces of any size.

    hello: the class of message that kind 0 is from this peer. limit: the longest payload accepted, in bytes.

    Bytes are written into `room()` and announced with `received(n)`, or copied in with `feed(data)`; then `next()` is
    called until it returns None. A RawFrame's or batch's data is a view that is valid until the next `room()` or
    `feed()`."""

    def __init__(self, hello: "Union[type[ClientHello], type[ServerHello]]", limit: int = MAX_PAYLOAD) -> None:
        self._hello = hello
        self.limit = limit
        self._buffer = bytearray(_FIRST)
        self._start = self._end = 0

    @property
    def pending(self) -> int:
        """Bytes received that are not part of a message given out: more than 0 at the end means it was cut."""
        return self._end - self._start

    def room(self, least: int = 1) -> memoryview:
        """Memory for the bytes that come next: at least `least`, and up to the end of a message that has begun."""
        held = self._end - self._start
        missing = max(least, self._wanted() - held)
        if self._start and (held == 0 or self._end + missing > len(self._buffer)):
            # A new buffer if views of the old one may still be in use, else the same one from its beginning.
            self._move(len(self._buffer))
        if self._end + missing > len(self._buffer):
            self._move(min(max(2 * len(self._buffer), held + least), held + missing))
        return memoryview(self._buffer)[self._end :]

    def _move(self, size: int) -> None:
        rest = self._buffer[self._start : self._end]
        if size != len(self._buffer):
            self._buffer = bytearray(max(size, len(rest)))
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def received(self, count: int) -> None:
        """`count` bytes are in the room."""
        self._end += count

    def feed(self, data: Bytes) -> None:
        """Takes bytes that are elsewhere."""
        self.room(len(data))[: len(data)] = data
        self.received(len(data))

    def _wanted(self) -> int:
        """How long the message that has begun is with all around it; the head's length as long as that is not known."""
        if self.pending < HEAD.size:
            return HEAD.size
        kind, length = HEAD.unpack_from(self._buffer, self._start)
        return HEAD.size + int(length) + (0 if kind == HELLO else TRAILER.size)

    def next(self) -> Optional[Message]:
        """The next message, or None when more bytes are needed. Raises WireError, after which nothing more comes."""
        if self.pending == 0:
            return None
        kind = self._buffer[self._start]
        if kind != HELLO and kind not in _BY_KIND:
            raise WireError(f"there is no kind of message {kind}")
        if self.pending < HEAD.size:
            return None
        _, length = HEAD.unpack_from(self._buffer, self._start)
        if length > self.limit:
            raise WireError(f"a message of {length} bytes is beyond the {self.limit} that are accepted here")
        size = self._wanted()
        if self.pending < size:
            return None
        whole = memoryview(self._buffer)[self._start : self._start + size]
        self._start += size
        payload = whole[HEAD.size : HEAD.size + length]
        if kind == HELLO:
            return self._hello.parse(payload)
        (expected,) = TRAILER.unpack(whole[HEAD.size + length :])
        if core.xxh3(whole[: HEAD.size + length]) != expected:
            raise WireError(f"a message of kind {kind} does not match its checksum: bytes were damaged on the way")
        message: Message = _BY_KIND[kind].parse(payload)
        return message
