"""`none`: input order. A position is a byte offset of the decoded input, where plain files and frames start at once."""

from collections.abc import Iterator

from shuflr.order.position import START, Block, Configured, Position
from shuflr.records.inputs import Input
from shuflr.records.sieve import Limits, Partition, Records, Sieve, whole_records


class Sequential(Configured):
    """Records as they come. Each epoch is the same."""

    mode = "none"
    replays = False

    def __init__(self, source: Input, seed: int, limits: Limits, partition: Partition) -> None:
        super().__init__(source, seed, limits, partition)
        self._source = source

    def bare(self, start: Position = START) -> Iterator[Records]:
        """The blocks of the epoch without a count of their records: for who only copies bytes."""
        sieve = Sieve(self._limits, self._partition)
        sieve.resume(start.ordinal)
        dropped = self.dropped
        try:
            yield from whole_records(self._source.chunks(start.unit), sieve, start.unit)
        finally:
            self.dropped = dropped + sieve.dropped

    def epoch(self, start: Position) -> Iterator[Block]:
        skip, record = start.taken, start.record - start.taken
        for data, offset, ordinal in self.bare(start):
            block = Block(data, Position(start.epoch, record, offset, 0, ordinal))
            record += block.records
            skipped = min(skip, block.records)
            skip -= skipped
            if skipped < block.records:
                yield block.without_first(skipped) if skipped else block
