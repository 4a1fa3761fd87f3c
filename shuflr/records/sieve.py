"""Blocks of whole records out of chunks of bytes, under a size policy and a partition among ranks.

Chunks may end anywhere; blocks end with a record. A record longer than the cap that is not to pass is never held:
its bytes are counted and let go.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.errors import InputError, OversizedRecord

MAX_LINE = 16 << 20
POLICIES = {"skip": core.SKIP, "fail": core.FAIL, "passthrough": core.PASSTHROUGH}


class Limits(NamedTuple):
    """The size policy: records longer than max_line bytes (their LF included) are skipped, failed or passed."""

    max_line: int = MAX_LINE
    policy: int = core.SKIP


class Partition(NamedTuple):
    """Rank `rank` of `world`: every world-th item, starting with the rank-th."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of(cls, rank: Optional[int], world: Optional[int]) -> "Partition":
        """Both or neither; the rank below the world size. Raises InputError."""
        if rank is None and world is None:
            return cls()
        if rank is None or world is None:
            raise InputError("rank and world size must be given together")
        if world < 1:
            raise InputError(f"world size is {world}, but must be at least 1")
        if not 0 <= rank < world:
            raise InputError(f"rank is {rank}, but must be at least 0 and below the world size {world}")
        return cls(rank, world)


class Records(NamedTuple):
    """A block of whole records, and where in the decoded input they come from."""

    data: "memoryview | bytearray"
    offset: int  # of the first byte that was looked at for this block
    ordinal: int  # of the first record there; counted only when there is a partition


class Sieve:
    """Applies the size policy, then the partition, to records in input order. `dropped` counts oversized ones."""

    def __init__(self, limits: Limits, partition: Partition) -> None:
        self._limits = limits
        self._sieve = ffi.new(
            "shuflr_sieve *",
            {
                "max_line": limits.max_line, "policy": limits.policy,
                "rank": partition.rank, "world": partition.world,
            },
        )  # fmt: skip
        self._partitioned = partition.world > 1
        self._out = bytearray()
        self._out_len = ffi.new("size_t *")

    @property
    def dropped(self) -> int:
        return int(self._sieve.dropped)

    def holds_back(self, length: int) -> bool:
        """Whether a record that is already this long can only be skipped or failed."""
        return length > self._limits.max_line and self._limits.policy != core.PASSTHROUGH

    def oversized(self, offset: int, length: int) -> None:
        """Counts, or raises for, a record that was not held."""
        if self._limits.policy == core.FAIL:
            raise OversizedRecord(offset, length, self._limits.max_line)
        self._sieve.dropped += 1
        self._sieve.ordinal += 1

    def resume(self, ordinal: int) -> None:
        """Counts on from a record of the input."""
        self._sieve.ordinal = ordinal

    def pass_on(self, block: "memoryview | bytearray", offset: int) -> Iterator[Records]:
        """The records of a block that pass, as at most one block; `offset` is where it lies in the input."""
        if not self._partitioned and not self.holds_back(len(block)):
            yield Records(block, offset, 0)
            return
        ordinal = int(self._sieve.ordinal)
        if len(self._out) < len(block):
            self._out = bytearray(len(block))
        status = lib.shuflr_sieve_run(
            self._sieve, core.pointer(block), len(block), core.pointer(self._out), self._out_len
        )
        if self._out_len[0]:
            yield Records(memoryview(self._out)[: self._out_len[0]], offset, ordinal)
        if status == lib.SHUFLR_OVERSIZED:
            raise OversizedRecord(
                offset + int(self._sieve.bad_offset), int(self._sieve.bad_len), self._limits.max_line
            )
        core.check(status)


def whole_records(chunks: Iterable["memoryview | bytes"], sieve: Sieve, offset: int = 0) -> Iterator[Records]:
    """Blocks of the records that pass the sieve; a last record without its LF gets one.

    A block is valid until the next is asked for. `offset` is where the first chunk lies in the input."""
    carry = bytearray()  # the beginning of a record whose end is in a later chunk
    let_go = 0  # bytes of it that were not kept because it is too long already
    start = offset  # where that record begins
    for chunk in chunks:
        last = core.after_last(chunk)
        if last == 0:
            if let_go or sieve.holds_back(len(carry) + len(chunk)):
                let_go += len(carry) + len(chunk)
                carry = bytearray()
            else:
                carry += chunk
            offset += len(chunk)
            continue
        view, head = memoryview(chunk), 0
        if let_go:
            head, _ = core.after_records(chunk, 1)
            sieve.oversized(start, let_go + head)
            let_go = 0
        elif carry:
            head, _ = core.after_records(chunk, 1)
            carry += view[:head]
            yield from sieve.pass_on(carry, start)
        if last > head:
            yield from sieve.pass_on(view[head:last], offset + head)
        carry = bytearray(view[last:])
        start = offset + last
        offset += len(chunk)
    if let_go:
        sieve.oversized(start, let_go)
    elif carry:
        for block in sieve.pass_on(carry, start):
            yield block._replace(data=bytearray(block.data) + b"\n")
