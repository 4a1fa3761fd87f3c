"""The messages of shuflr-wire/1: one small class each, which knows its kind and its payload and nothing of framing.

Integers are little-endian. `payload` makes the bytes; `parse` reads them and raises WireError for bytes that are not
such a payload. What is large (a frame, a batch) stays a view of the memory it came in.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Union

from shuflr.errors import ShuflrError

Bytes = Union[bytes, bytearray, memoryview]

MAX_PAYLOAD = 512 << 20  # inclusive
PROTOCOL = 1
MAGIC = b"SHUFLRW1"

# Capabilities that a client announces.
CAN_RAW, CAN_ZSTD, CAN_CHECKSUM = 1, 2, 4

# What authenticates a client.
AUTH_NONE, AUTH_BEARER, AUTH_MTLS = 0, 1, 2

# How records travel, as a server chooses.
MODE_NONE, MODE_RAW, MODE_ZSTD, MODE_PLAIN = 0, 1, 2, 3

# Why a stream broke off.
UNSPECIFIED, MALFORMED_RECORD, OVERSIZED_RECORD, IO_ERROR, SLOW_CONSUMER = 0, 1, 2, 3, 4
SERVER_SHUTDOWN, AUTH_DENIED, RESOURCE_EXHAUSTED, INTERNAL = 5, 6, 7, 8

INITIAL_CREDIT = 16 << 20


class WireError(ShuflrError):
    """The bytes are not shuflr-wire/1."""


def _exactly(what: str, fields: struct.Struct, payload: memoryview) -> "tuple[int, ...]":
    if len(payload) != fields.size:
        raise WireError(f"{what} has {fields.size} bytes of payload, not {len(payload)}")
    return fields.unpack(payload)


def _at_least(what: str, fields: struct.Struct, payload: memoryview) -> "tuple[int, ...]":
    if len(payload) < fields.size:
        raise WireError(f"{what} has at least {fields.size} bytes of payload, not {len(payload)}")
    return fields.unpack_from(payload)


def _rest(what: str, payload: memoryview, at: int, size: int) -> memoryview:
    """`size` bytes of the payload from `at` on."""
    if len(payload) - at < size:
        raise WireError(f"{what}: a field of {size} bytes reaches beyond the payload")
    return payload[at : at + size]


@dataclass
class ClientHello:
    """The first message of a client: who it is and what it wants. `open` is the JSON of an OpenStream."""

    kind: ClassVar[int] = 0
    open: bytes
    capabilities: int = CAN_RAW | CAN_ZSTD | CAN_CHECKSUM
    auth_kind: int = AUTH_NONE
    auth: bytes = b""

    def payload(self) -> bytes:
        head = struct.pack("<8sBBBH", MAGIC, PROTOCOL, self.capabilities, self.auth_kind, len(self.auth))
        return head + self.auth + struct.pack("<I", len(self.open)) + self.open

    @classmethod
    def parse(cls, payload: memoryview) -> "ClientHello":
        head = struct.Struct("<8sBBBH")
        _at_least("a client's hello", head, payload)
        magic, version, capabilities, auth_kind, auth_len = head.unpack_from(payload)
        if magic != MAGIC:
            raise WireError(f"a client's hello begins with {MAGIC!r}, not {magic!r}")
        if version != PROTOCOL:
            raise WireError(f"protocol version {version} is not spoken here, only {PROTOCOL}")
        if auth_kind > AUTH_MTLS:
            raise WireError(f"there is no kind of authentication {auth_kind}")
        auth = _rest("a client's hello", payload, head.size, auth_len)
        at = head.size + auth_len
        (open_len,) = struct.unpack("<I", _rest("a client's hello", payload, at, 4))
        return cls(bytes(_rest("a client's hello", payload, at + 4, open_len)), capabilities, auth_kind, bytes(auth))


@dataclass
class ServerHello:
    """The answer: status 0 and the JSON of a StreamOpened, or another status and a sentence in UTF-8."""

    kind: ClassVar[int] = 0
    opened: bytes
    status: int = 0
    mode: int = MODE_NONE
    credit: int = INITIAL_CREDIT
    version: int = PROTOCOL
    max_message: int = MAX_PAYLOAD

    @classmethod
    def refusal(cls, detail: str) -> "ServerHello":
        return cls(detail.encode("utf-8", "replace"), status=1, credit=0)

    def payload(self) -> bytes:
        head = struct.pack("<BBQBI", self.status, self.mode, self.credit, self.version, self.max_message)
        return head + struct.pack("<I", len(self.opened)) + self.opened

    @classmethod
    def parse(cls, payload: memoryview) -> "ServerHello":
        head = struct.Struct("<BBQBII")
        status, mode, credit, version, most, size = _at_least("a server's hello", head, payload)
        if version != PROTOCOL:
            raise WireError(f"the server speaks protocol version {version}, not {PROTOCOL}")
        return cls(bytes(_rest("a server's hello", payload, head.size, size)), status, mode, credit, version, most)


@dataclass
class RawFrame:
    """A stored frame and the key that orders its records: decode, split at LF, shuffle with the key."""

    kind: ClassVar[int] = 1
    frame: int
    key: bytes
    data: Bytes

    HEAD: ClassVar[struct.Struct] = struct.Struct("<I32s")

    def payload(self) -> bytes:
        return self.HEAD.pack(self.frame, self.key) + self.data

    @classmethod
    def parse(cls, payload: memoryview) -> "RawFrame":
        _at_least("a raw frame", cls.HEAD, payload)
        frame, key = cls.HEAD.unpack_from(payload)
        return cls(frame, key, payload[cls.HEAD.size :])


_BATCH = struct.Struct("<QII")


@dataclass
class ZstdBatch:
    """Records as u32 length and bytes each, compressed with zstd."""

    kind: ClassVar[int] = 2
    batch: int
    epoch: int
    records: int
    data: Bytes

    def payload(self) -> bytes:
        return _BATCH.pack(self.batch, self.epoch, self.records) + self.data

    @classmethod
    def parse(cls, payload: memoryview) -> "ZstdBatch":
        batch, epoch, records = _at_least("a batch", _BATCH, payload)
        return cls(batch, epoch, records, payload[_BATCH.size :])


@dataclass
class PlainBatch:
    """Records without their LFs, as u32 length and bytes each; bytes behind the last are ignored."""

    kind: ClassVar[int] = 3
    batch: int
    epoch: int
    records: int
    data: Bytes

    @classmethod
    def of(cls, batch: int, epoch: int, records: "Iterable[bytes]") -> "PlainBatch":
        listed = list(records)
        data = b"".join(struct.pack("<I", len(record)) + record for record in listed)
        return cls(batch, epoch, len(listed), data)

    def unpacked(self) -> Iterator[bytes]:
        """The records, one by one. Raises WireError for one that reaches beyond the batch."""
        view, at = memoryview(self.data), 0
        for _ in range(self.records):
            (size,) = struct.unpack("<I", _rest("a batch", view, at, 4))
            yield bytes(_rest("a batch", view, at + 4, size))
            at += 4 + size

    def payload(self) -> bytes:
        return _BATCH.pack(self.batch, self.epoch, self.records) + self.data

    @classmethod
    def parse(cls, payload: memoryview) -> "PlainBatch":
        batch, epoch, records = _at_least("a batch", _BATCH, payload)
        if 4 * records > len(payload) - _BATCH.size:
            raise WireError(f"a batch of {records} records cannot have {len(payload)} bytes")
        return cls(batch, epoch, records, payload[_BATCH.size :])


@dataclass
class EpochBoundary:
    """An epoch is complete; `records` of it were sent."""

    kind: ClassVar[int] = 4
    epoch: int
    records: int

    FIELDS: ClassVar[struct.Struct] = struct.Struct("<IQ")

    def payload(self) -> bytes:
        return self.FIELDS.pack(self.epoch, self.records)

    @classmethod
    def parse(cls, payload: memoryview) -> "EpochBoundary":
        epoch, records = _exactly("an epoch's end", cls.FIELDS, payload)
        return cls(epoch, records)


@dataclass
class StreamError:
    """The stream broke off, and why."""

    kind: ClassVar[int] = 5
    code: int
    fatal: bool
    detail: str

    def payload(self) -> bytes:
        return struct.pack("<BB", self.code, self.fatal) + self.detail.encode("utf-8", "replace")

    @classmethod
    def parse(cls, payload: memoryview) -> "StreamError":
        code, fatal = _at_least("an error", struct.Struct("<BB"), payload)
        detail = bytes(payload[2:]).decode("utf-8", "replace")
        return cls(code if code <= INTERNAL else UNSPECIFIED, bool(fatal), detail)


@dataclass
class StreamClosed:
    """The stream is complete: so many records in so many epochs."""

    kind: ClassVar[int] = 6
    records: int
    epochs: int

    FIELDS: ClassVar[struct.Struct] = struct.Struct("<QI")

    def payload(self) -> bytes:
        return self.FIELDS.pack(self.records, self.epochs)

    @classmethod
    def parse(cls, payload: memoryview) -> "StreamClosed":
        records, epochs = _exactly("a stream's end", cls.FIELDS, payload)
        return cls(records, epochs)


_NUMBER = struct.Struct("<Q")


@dataclass
class Heartbeat:
    """The server is alive and has nothing to send yet."""

    kind: ClassVar[int] = 7
    number: int

    def payload(self) -> bytes:
        return _NUMBER.pack(self.number)

    @classmethod
    def parse(cls, payload: memoryview) -> "Heartbeat":
        return cls(*_exactly("a heartbeat", _NUMBER, payload))


@dataclass
class AddCredit:
    """The client can take so many bytes more."""

    kind: ClassVar[int] = 10
    number: int

    def payload(self) -> bytes:
        return _NUMBER.pack(self.number)

    @classmethod
    def parse(cls, payload: memoryview) -> "AddCredit":
        return cls(*_exactly("credit", _NUMBER, payload))


@dataclass
class Cancel:
    """The client wants no more; `reason` is free."""

    kind: ClassVar[int] = 11
    reason: bytes = b""

    def payload(self) -> bytes:
        return self.reason

    @classmethod
    def parse(cls, payload: memoryview) -> "Cancel":
        return cls(bytes(payload))


@dataclass
class Pong:
    """The answer to a heartbeat."""

    kind: ClassVar[int] = 12
    number: int

    def payload(self) -> bytes:
        return _NUMBER.pack(self.number)

    @classmethod
    def parse(cls, payload: memoryview) -> "Pong":
        return cls(*_exactly("a pong", _NUMBER, payload))


Message = Union[
    ClientHello, ServerHello, RawFrame, ZstdBatch, PlainBatch, EpochBoundary, StreamError, StreamClosed, Heartbeat,
    AddCredit, Cancel, Pong,
]  # fmt: skip
