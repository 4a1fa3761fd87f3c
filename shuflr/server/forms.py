"""The two forms that decoded records take: lines, and the batches of the wire. What a form has left open between two
blocks is a value, so that a block can be made again.
"""

from typing import Any

from shuflr import core
from shuflr.records.sieve import MAX_LINE
from shuflr.wire import EpochBoundary, StreamClosed, encode

BATCH_BYTES = 1 << 18  # a batch is closed when it has so many


class Lines:
    """Records as they are stored, each with its LF. One without, which only frames that were not cut at records have,
    runs on into the next."""

    def __init__(self) -> None:
        self.open: Any = False  # whether the last record has no LF yet

    def begin(self, epoch: int) -> None:
        """Nothing marks an epoch."""

    def of_frame(self, work: core.Work, limit: int) -> "tuple[memoryview, int]":
        """What the frame in a work area gives, and how many records that begins."""
        view, content = work.gather(limit, False, MAX_LINE, core.SKIP), work.content
        whole = not self.open and (not content or content[len(content) - 1] == 0x0A)
        return view, work.emitted if whole else self._begun(view)

    def of_block(self, work: core.Work, data: Any) -> "tuple[memoryview, int]":
        """The same of a block of records."""
        return memoryview(data), self._begun(memoryview(data))

    def _begun(self, view: memoryview) -> int:
        before = bool(self.open)
        if view:
            self.open = view[len(view) - 1] != 0x0A
        return core.count_lf(view) + bool(self.open) - before

    def end(self, epoch: int, records: int) -> bytes:
        """What follows an epoch."""
        return b""

    def close(self, records: int, epochs: int) -> bytes:
        """What follows the last epoch."""
        return b""


class Batches:
    """Records as messages of the wire: batches, a boundary after each epoch, and the end.

    most_records: of a batch. level: of zstd batches; 0 for plain ones."""

    def __init__(self, most_records: int, level: int = 0) -> None:
        self._batches = core.Batches(most_records, BATCH_BYTES, level)

    @property
    def open(self) -> Any:
        return self._batches.open

    @open.setter
    def open(self, value: Any) -> None:
        self._batches.open = value

    def begin(self, epoch: int) -> None:
        self._batches.begin(epoch)

    def of_frame(self, work: core.Work, limit: int) -> "tuple[memoryview, int]":
        return work.batches(self._batches, limit, False, MAX_LINE, core.SKIP), work.emitted

    def of_block(self, work: core.Work, data: Any) -> "tuple[memoryview, int]":
        work.load(data)
        return work.batches(self._batches), work.emitted

    def end(self, epoch: int, records: int) -> bytes:
        work = core.Work()
        work.load(b"")
        return bytes(work.batches(self._batches, final=True)) + encode(EpochBoundary(epoch, records))

    def close(self, records: int, epochs: int) -> bytes:
        return encode(StreamClosed(records, epochs))
