"""Compressed streams decoded to bytes: gzip, zstd, bzip2 and xz, all of several members, recognised by their magic.

A reader has `readinto(buffer) -> int`, 0 at the end. A stream that stops in the middle raises Truncated after
everything before has been given out.
"""

from collections.abc import Iterable
from typing import Any, Callable, Protocol

from shuflr import core
from shuflr.errors import DataError, InputError, Truncated

FORMATS = ("auto", "plain", "gzip", "zstd", "bz2", "xz")
SNIFF = 64
_READ = 1 << 17

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
)


class Reader(Protocol):
    """Anything that fills a buffer."""

    def readinto(self, buffer: Any) -> "int | None": ...


def sniff(head: bytes) -> str:
    """The format that the first bytes of a stream announce; `plain` when they announce none.

    A zstd stream may begin with a skippable frame (0x184D2A50 to 0x184D2A5F)."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "zstd"
    return "plain"


class Peeked:
    """A reader whose first bytes can be looked at before they are read."""

    def __init__(self, raw: Reader) -> None:
        self._raw = raw
        self.head = b""

    def peek(self, n: int) -> bytes:
        buffer = bytearray(n)
        while len(self.head) < n:
            got = self._raw.readinto(memoryview(buffer)[: n - len(self.head)])
            if not got:
                break
            self.head += bytes(buffer[:got])
        return self.head

    def readinto(self, buffer: Any) -> int:
        if self.head:
            n = min(len(self.head), len(buffer))
            buffer[:n] = self.head[:n]
            self.head = self.head[n:]
            return n
        return self._raw.readinto(buffer) or 0


class _Inflate:
    """zlib's decompressor with the interface of bz2's and lzma's."""

    def __init__(self) -> None:
        import zlib

        self._inflate = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


def _bz2_member() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _xz_member() -> Any:
    import lzma

    return lzma.LZMADecompressor()


# How a member of each format is decoded. A module is loaded with its first member.
_MEMBERS: "dict[str, Callable[[], Any]]" = {"gzip": _Inflate, "bz2": _bz2_member, "xz": _xz_member}


def _damage(name: str) -> "tuple[type[Exception], ...]":
    """What a decoder of the format raises for bytes it cannot decode."""
    if name == "gzip":
        import zlib

        return (zlib.error,)
    if name == "xz":
        import lzma

        return (lzma.LZMAError,)
    return (OSError, ValueError)


class Members:
    """A reader of one compressed member after the other; zero bytes between or behind them are padding."""

    def __init__(self, raw: Reader, make: Callable[[], Any], name: str) -> None:
        self._raw = raw
        self._make = make
        self._name = name
        self._member: Any = None
        self._input = b""
        self._buffer = bytearray(_READ)

    def _more(self) -> bytes:
        got = self._raw.readinto(self._buffer) or 0
        return bytes(memoryview(self._buffer)[:got])

    def _open_member(self) -> bool:
        while True:
            self._input = self._input.lstrip(b"\0") if self._member is not None else self._input
            if self._input:
                self._member = self._make()
                return True
            self._input = self._more()
            if not self._input:
                return False

    def readinto(self, buffer: Any) -> int:
        while True:
            if (self._member is None or self._member.eof) and not self._open_member():
                return 0
            if not self._input and self._member.needs_input:
                self._input = self._more()
                if not self._input:
                    raise Truncated(f"the {self._name} stream ends in the middle of a member")
            try:
                data = self._member.decompress(self._input, len(buffer))
            except _damage(self._name) as error:
                raise Truncated(f"the {self._name} stream is damaged: {error}") from None
            self._input = self._member.unused_data if self._member.eof else b""
            if data:
                buffer[: len(data)] = data
                return len(data)


class ZstdReader:
    """A reader of zstd frames, one after the other, skippable ones passed over."""

    def __init__(self, raw: Reader) -> None:
        self._raw = raw
        self._stream = core.ZstdStream()
        self._buffer = bytearray(_READ)
        self._at = self._end = 0

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._at == self._end:
                self._at, self._end = 0, self._raw.readinto(self._buffer) or 0
                if self._end == 0 and not self._stream.open:
                    return 0
                if self._end == 0:
                    return self._flush(buffer)
            wrote = self._feed(buffer)
            if wrote:
                return wrote

    def _feed(self, buffer: Any) -> int:
        try:
            self._at, wrote = self._stream.feed(memoryview(self._buffer)[: self._end], self._at, buffer)
        except DataError as error:
            raise Truncated(str(error)) from None
        return wrote

    def _flush(self, buffer: Any) -> int:
        """What zstd still holds when the input is used up; nothing more means that a frame was cut."""
        wrote = self._feed(buffer)
        if wrote == 0 and self._stream.open:
            raise Truncated("the zstd stream ends in the middle of a frame")
        return wrote


def decoded(raw: Reader, form: str = "auto") -> Reader:
    """A reader of the decoded bytes of `raw`; `form` is one of FORMATS. lz4 is recognised and refused (InputError)."""
    source = Peeked(raw)
    name = sniff(source.peek(SNIFF)) if form == "auto" else form
    if name == "plain":
        return source
    if name in _MEMBERS:
        return Members(source, _MEMBERS[name], name)
    if name == "zstd":
        return ZstdReader(source)
    raise InputError(f"{name} input is not supported; decompress it first, or use gzip, zstd, bzip2 or xz")


class ChunkReader:
    """A reader over chunks of bytes that come from elsewhere."""

    def __init__(self, chunks: "Iterable[memoryview | bytearray | bytes]") -> None:
        self._chunks = iter(chunks)
        self._now: Any = memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        while not len(self._now):
            following = next(self._chunks, None)
            if following is None:
                return 0
            self._now = memoryview(following)
        n = min(len(self._now), len(buffer))
        buffer[:n] = self._now[:n]
        self._now = self._now[n:]
        return n
