"""`buffer` and `reservoir`: what a bounded memory can do with a stream of unknown length.

Both draw from the generator seeded with the epoch's seed, and have no shorter way to a position than to run again:
`replays` says so.
"""

from collections.abc import Iterator
from typing import Any, Callable

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.order.position import Block, Configured, Position
from shuflr.order.seeds import epoch_seed
from shuflr.records.inputs import CHUNK, Input
from shuflr.records.sieve import Limits, Partition, Sieve, whole_records


class _Out:
    """The memory that records come out into, and the counters C leaves beside it."""

    def __init__(self) -> None:
        self.memory = bytearray(CHUNK)
        self.size = ffi.new("size_t *")
        self.emitted = ffi.new("uint64_t *")
        self.needs = ffi.new("size_t *")

    def fill(self, call: "Callable[[Any, int], int]") -> bool:
        """Runs one call of the core over the empty memory; whether anything may be left for another."""
        self.size[0] = self.emitted[0] = 0
        core.check(call(core.pointer(self.memory), len(self.memory)))
        if self.needs[0] > len(self.memory):
            self.memory = bytearray(2 * self.needs[0])
        return bool(self.needs[0])

    @property
    def data(self) -> memoryview:
        return memoryview(self.memory)[: self.size[0]]


class _Slots(Configured):
    """What the two orders share: their input, their seed, and the positions of their blocks."""

    mode = ""
    replays = True

    def __init__(self, source: Input, seed: int, size: int, limits: Limits, partition: Partition) -> None:
        super().__init__(source, seed, limits, partition)
        self._source = source
        self._size = size

    @property
    def parameters(self) -> "dict[str, int]":
        return {"size": self._size, **super().parameters}

    def _run(self, slots: Any, sieve: Sieve, out: _Out) -> Iterator[None]:
        raise NotImplementedError

    def epoch(self, start: Position) -> Iterator[Block]:
        slots = ffi.gc(
            lib.shuflr_slots_new(self._size, core.key_of_u64(epoch_seed(self.seed, start.epoch))),
            lib.shuflr_slots_free,
        )
        if slots == ffi.NULL:
            raise MemoryError(f"no memory for {self._size} records")
        sieve, out = Sieve(self._limits, self._partition), _Out()
        dropped = self.dropped
        skip, record = start.record, 0
        try:
            for _ in self._run(slots, sieve, out):
                block = Block(out.data, Position(start.epoch, record), int(out.emitted[0]))
                record += block.records
                if record <= skip:
                    continue
                before = record - block.records
                yield block.without_first(skip - before) if before < skip else block
        finally:
            self.dropped = dropped + sieve.dropped


class Buffer(_Slots):
    """A ring of `size` records: once it is full, each record that comes in pushes out one drawn at random.

    Memory: the ring's records, and 80 bytes each."""

    mode = "buffer"

    def _run(self, slots: Any, sieve: Sieve, out: _Out) -> Iterator[None]:
        at = ffi.new("size_t *")
        for data, _, _ in whole_records(self._source.chunks(), sieve):
            at[0] = 0
            source = core.pointer(data)
            while at[0] < len(data):

                def feed(memory: Any, size: int, source: Any = source, length: int = len(data)) -> int:
                    return int(
                        lib.shuflr_ring_feed(
                            slots, source, length, at, memory, size, out.size, out.emitted, core.UNBOUNDED, out.needs
                        )
                    )

                out.fill(feed)
                yield

        def drain(memory: Any, size: int) -> int:
            return int(
                lib.shuflr_ring_drain(slots, memory, size, out.size, out.emitted, core.UNBOUNDED, out.needs)
            )

        while slots.filled:
            out.fill(drain)
            yield


class Reservoir(_Slots):
    """`size` records of the input, each as likely as any other, in random order.

    Memory: the reservoir's records, and 80 bytes each."""

    mode = "reservoir"

    def _run(self, slots: Any, sieve: Sieve, out: _Out) -> Iterator[None]:
        for data, _, _ in whole_records(self._source.chunks(), sieve):
            core.check(lib.shuflr_reservoir_feed(slots, core.pointer(data), len(data)))

        def drain(memory: Any, size: int) -> int:
            return int(
                lib.shuflr_reservoir_drain(slots, memory, size, out.size, out.emitted, core.UNBOUNDED, out.needs)
            )

        more = True
        while more:
            more = out.fill(drain)
            yield
