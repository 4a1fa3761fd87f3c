"""Where a stream stands, and the blocks that take it further. Values only: no order keeps a cursor of its own."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional, Protocol

from shuflr import core
from shuflr.records.sieve import Limits, Partition


class Position(NamedTuple):
    """A place before a record. What `unit` counts is up to the order: frames, pools, bytes of input."""

    epoch: int = 0
    record: int = 0  # records handed out in this epoch before it
    unit: int = 0  # where to start reading again
    taken: int = 0  # records handed out since that start
    ordinal: int = 0  # records of the input before that start, where the order counts them


START = Position()


class Block:
    """Whole records, in order, as one piece of memory that is valid until the next block is asked for."""

    __slots__ = ("_records", "data", "start")

    def __init__(self, data: Any, start: Position, records: Optional[int] = None) -> None:
        self.data = data
        self.start = start
        self._records = records

    @property
    def records(self) -> int:
        """How many there are; a last one without its LF counts."""
        if self._records is None:
            size = len(self.data)
            self._records = core.count_lf(self.data) + (size > 0 and self.data[size - 1] != 0x0A)
        return self._records

    def after(self, records: int) -> Position:
        """The position after that many records of the block."""
        return self.start._replace(record=self.start.record + records, taken=self.start.taken + records)

    def first(self, records: int) -> "Block":
        """The block of its first records."""
        if records >= self.records:
            return self
        end, _ = core.after_records(self.data, records)
        return Block(memoryview(self.data)[:end], self.start, records)


    def without_first(self, records: int) -> "Block":
        """The block without its first records."""
        end, _ = core.after_records(self.data, records)
        return Block(memoryview(self.data)[end:], self.after(records), self.records - records)


class Order(Protocol):
    """One way through one input. Configuration only: every `epoch` call is independent of the others."""

    mode: str
    seed: int
    replays: bool  # whether starting at a position hands out and drops all before it
    dropped: int  # records that the size policy left out so far

    @property
    def fingerprint(self) -> bytes:
        """The 32 bytes that name the input's state."""
        ...

    @property
    def parameters(self) -> "dict[str, int]":
        """What else the sequence depends on."""
        ...

    def epoch(self, start: Position) -> Iterator[Block]:
        """The blocks from `start` to the end of its epoch."""
        ...


class Fingerprinted(Protocol):
    """An input that can name its state."""

    @property
    def fingerprint(self) -> bytes: ...


class Configured:
    """What every order over an input holds: its seed, its limits, its part of the data."""

    def __init__(self, origin: Fingerprinted, seed: int, limits: Limits, partition: Partition) -> None:
        self.seed = seed
        self.dropped = 0
        self._origin = origin
        self._limits = limits
        self._partition = partition

    @property
    def fingerprint(self) -> bytes:
        return self._origin.fingerprint

    @property
    def parameters(self) -> "dict[str, int]":
        return {**self._limits._asdict(), **self._partition._asdict()}


def blocks(
    order: Order, epochs: int = 1, sample: Optional[int] = None, start: Optional[Position] = None
) -> Iterator[Block]:
    """The blocks of several epochs (0: endless), `sample` records at most in all, from a position on.

    An epoch without any record ends an endless stream."""
    start = start or START
    left = core.UNBOUNDED if sample is None else sample
    epoch = start.epoch
    while left > 0 and (epochs == 0 or epoch < epochs):
        empty = start.record == 0
        for block in order.epoch(start):
            empty = False
            if sample is None:
                yield block
                continue
            yield block.first(left)
            left -= min(left, block.records)
            if left == 0:
                return
        if empty:
            return
        epoch += 1
        start = Position(epoch)
