"""What an edge pulls from, whatever is behind it.

A stream is a pure function of the dataset, the request and how many bytes are out, so it may be stopped, lose its
memory and go on anywhere. The end of an epoch, and of the stream, report all records from its beginning, those that a
resumed client had before among them.
"""

from typing import Callable, Optional

from shuflr.server.memory import Memory
from shuflr.server.plan import Plan

Write = Callable[[memoryview], int]
SendFile = Callable[[memoryview, int, int, int], int]


class Stream:
    """What an edge pulls: `offer` until it returns False. One thread at a time.

    turns: the gate through which the edge came, when it calls `offer`; left while the stream waits or counts.
    records, epochs: sent so far, those that were skipped among the records. bytes: sent. dropped: records beyond 16 MiB
    that were left out. waited: seconds spent waiting for memory."""

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self.plan = plan
        self.turns = memory.turns
        self.records = self.epochs = self.bytes = self.dropped = 0
        self.waited = 0.0
        self.resumed_at: Optional[int] = None
        self.skip_in_frame: Optional[int] = None
        self._sent = 0  # bytes of what is being sent: a block, a frame, or what stands between them

    def offer(self, write: Write, send_file: Optional[SendFile] = None) -> bool:
        """Hands what comes next to write(view), which takes as many bytes as it returns, without blocking; 0 if the
        client takes none now. False when the stream is complete. Called with a turn at `turns`.

        send_file(head, fd, offset, count), where the edge has it, is given stored bytes by their place: it writes the
        head and then from the file, and returns how many bytes of both it wrote.

        Raises DatasetChanged and DataError for a source that cannot be trusted any more, Overloaded."""
        raise NotImplementedError

    @property
    def between(self) -> bool:
        """Whether what is out ends with a message, so that another may follow."""
        return self._sent == 0

    @property
    def in_hand(self) -> bool:
        """Whether something is ready to be written that would have to be made again if the edge waited now."""
        raise NotImplementedError

    def take(self, limit: int) -> bytes:
        """At most `limit` of the bytes that come next; none when the stream is complete. For edges whose writes block:
        meanwhile the stream holds nothing that others could need."""
        taken = b""

        def copy(view: memoryview) -> int:
            nonlocal taken
            taken = bytes(view[:limit])
            return len(taken)

        with self.turns:
            while not taken and self.offer(copy):
                pass
        return taken

    def settle(self) -> None:
        """Makes `records` exact where it was left open to save work."""

    def close(self) -> None:
        """Gives back what the stream holds."""


class BrokenStream(Stream):
    """A stream that fails at its first byte: for edges that promise one before they look at the file."""

    def __init__(self, plan: Plan, memory: Memory, error: Exception) -> None:
        super().__init__(plan, memory)
        self._error = error

    @property
    def in_hand(self) -> bool:
        return False

    def offer(self, write: Write, send_file: Optional[SendFile] = None) -> bool:
        raise self._error
