"""What a connection gives, piece by piece: records that are still to be unpacked, and the marks between them."""

from typing import Any, NamedTuple, Optional, Protocol, Union


class Piece(Protocol):
    """Some records on their way. `prepare` does what needs no interpreter, in any thread; then `records` makes them, in
    the consumer's thread and in order: objects are freed where they are made, which is what memory allocators like."""

    def prepare(self) -> None:
        """Checks and decodes. Raises StreamError."""
        ...

    def records(self) -> "list[bytes]":
        """The records without their LFs, once. Raises StreamError for one that cannot be unpacked."""
        ...


_LARGEST_KEPT = 16 << 20  # one larger message does not stay for the life of the process


class Buffers:
    """Memory for pieces, used again: a few of them, whatever the number of streams."""

    def __init__(self, most: int = 8) -> None:
        self._free: list[bytearray] = []
        self._most = most

    def take(self, size: int) -> bytearray:
        """At least `size` bytes."""
        try:
            buffer = self._free.pop()
        except IndexError:
            return bytearray(size + size // 8)
        return buffer if len(buffer) >= size else bytearray(size + size // 8)

    def give(self, buffer: bytearray) -> None:
        if len(self._free) < self._most and len(buffer) <= _LARGEST_KEPT:
            self._free.append(buffer)


class EpochEnd(NamedTuple):
    """An epoch is complete; so many records of it, those before this connection included."""

    sent: int


class End(NamedTuple):
    """The stream is complete. sent: its records as the server says; None: it does not."""

    sent: Optional[int]


Item = Union[Piece, EpochEnd, End]


class Connection(Protocol):
    """One connection to one stream. `receive` is called by one thread at a time.

    fingerprint: of the data, as the server says. resumed_at: the records that the server skipped. drop: how many of
    those that come first were received before. total: records of the whole stream, when known. exact: whether epochs
    are already cut to the sample. marked: whether their ends are. weight: about how many bytes of memory a
    piece takes."""

    transport: str
    fingerprint: Optional[str]
    resumed_at: int
    drop: int
    total: Optional[int]
    exact: bool
    marked: bool
    weight: int
    received: int

    def receive(self) -> Any:
        """The next Item. Raises ConnectionLost, or StreamError for what no other connection could mend."""
        ...

    def fileno(self) -> int: ...

    @property
    def pending(self) -> bool:
        """Whether bytes are here already that the socket does not show."""
        ...

    def interrupt(self) -> None:
        """Makes a `receive` under way in another thread fail."""
        ...

    def close(self) -> None: ...
