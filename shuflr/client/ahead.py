"""Who reads when: the pieces of a connection in order, prepared ahead by one background thread of the process.

One thread serves all streams of a process: it reads only where bytes have arrived, so a server that stalls holds up
nobody else, and only while a stream has less than two pieces ready and the process less than 64 MiB. A consumer whose
stream has nothing ready reads for itself, and prepares the next piece while the thread prepares the one before it.

Nothing here outlives a fork: the thread and the connections belong to the process that made them.
"""

import os
import select
import threading
from collections import deque
from typing import Any, Optional

from shuflr.client.pieces import Connection, End, EpochEnd, Piece

READY = 2
BUDGET = 64 << 20


class Slot:
    """One item of a connection: taken from it in order, prepared by whoever took it."""

    __slots__ = ("_done", "error", "mark", "piece")

    def __init__(self) -> None:
        self.piece: Optional[Piece] = None
        self.mark: Any = None  # EpochEnd or End
        self.error: Optional[BaseException] = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def done(self) -> bool:
        return not self._done.locked()

    def finish(self) -> None:
        self._done.release()

    def wait(self) -> None:
        with self._done:
            pass


class Line:
    """The items of one connection, in order. `take` is for one consumer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._reading = threading.Lock()
        self._slots: deque[Slot] = deque()
        self._ended = False
        self._ahead = _of_this_process()
        self._ahead.enter(self)

    @property
    def held(self) -> int:
        """About how many bytes wait here."""
        return len(self._slots) * self.connection.weight

    @property
    def hungry(self) -> bool:
        """Whether the thread may read here. Not while the consumer does: it says so when it is through."""
        return not self._ended and len(self._slots) < READY and not self._reading.locked()

    def take(self) -> Slot:
        """The next item, read here and now if nobody did so before."""
        while True:
            try:
                slot = self._slots[0]
            except IndexError:
                self._read(only_if_empty=True)
                continue
            if not slot.done and len(self._slots) < READY and self._arrived():
                self.read_ahead()
            slot.wait()
            self._slots.popleft()
            self._ahead.wake()
            return slot

    def _arrived(self) -> bool:
        if self._ended:
            return False
        if self.connection.pending:
            return True
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def read_ahead(self) -> None:
        """Reads one item more, unless somebody else is reading this connection."""
        self._read(only_if_empty=False)

    def _read(self, only_if_empty: bool) -> None:
        if not self._reading.acquire(blocking=only_if_empty):
            return
        try:
            if self._ended or (only_if_empty and self._slots):
                return
            slot = Slot()
            item: Any = None
            try:
                item = self.connection.receive()
                if isinstance(item, End):
                    self._ended = True
            except BaseException as error:
                # The connection stands in the middle of something: nothing more can come from it.
                self._ended = True
                slot.error = error
                if not isinstance(error, Exception):
                    raise
            finally:
                self._slots.append(slot)
                if item is None:
                    slot.finish()
        finally:
            self._reading.release()
        if item is not None:
            self._prepare(slot, item)

    def _prepare(self, slot: Slot, item: Any) -> None:
        try:
            if isinstance(item, (End, EpochEnd)):
                slot.mark = item
            else:
                item.prepare()
                slot.piece = item
        except BaseException as error:
            slot.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            slot.finish()

    def close(self) -> None:
        """Ends the connection, and waits for the thread to be out of it."""
        self._ended = True
        if self._ahead.pid != os.getpid():
            self.connection.close()
            return
        self._ahead.leave(self)
        self.connection.interrupt()
        with self._reading:
            self.connection.close()


class Ahead:
    """The reading thread of this process. It runs while there are lines."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lines: list[Line] = []
        self._guard = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._idle = False
        self._bell_out, self._bell = os.pipe()
        for end in (self._bell_out, self._bell):
            os.set_blocking(end, False)

    def enter(self, line: Line) -> None:
        with self._guard:
            self._lines.append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shuflr-ahead", daemon=True)
                self._thread.start()
        self.wake()

    def leave(self, line: Line) -> None:
        with self._guard:
            if line in self._lines:
                self._lines.remove(line)
        self.wake()

    def wake(self) -> None:
        """Something has changed that may give the thread work."""
        if self._idle:
            self._idle = False
            try:
                os.write(self._bell, b"x")
            except BlockingIOError:
                pass  # it rings already

    def _run(self) -> None:
        while True:
            self._idle = True  # from here on a change rings: none is lost between the look and the wait
            with self._guard:
                if not self._lines:
                    self._thread = None
                    return
                lines = list(self._lines)
            for line in self._ready(lines):
                if line.hungry and sum(other.held for other in lines) < BUDGET:
                    line.read_ahead()

    def _ready(self, lines: "list[Line]") -> "list[Line]":
        """The lines that may read and have something to read; waits for one."""
        hungry = [line for line in lines if line.hungry] if sum(line.held for line in lines) < BUDGET else []
        poll = select.poll()
        poll.register(self._bell_out, select.POLLIN)
        by_fd: dict[int, Line] = {}
        arrived: list[Line] = []
        for line in hungry:
            try:
                if line.connection.pending:
                    arrived.append(line)
                    continue
                fd = line.connection.fileno()
                if fd >= 0:
                    by_fd[fd] = line
                    poll.register(fd, select.POLLIN)
            except (OSError, ValueError):
                continue  # closed this moment
        events = poll.poll(0 if arrived else None)
        self._idle = False
        for fd, _ in events:
            if fd == self._bell_out:
                try:
                    os.read(fd, 4096)
                except BlockingIOError:
                    pass
            else:
                arrived.append(by_fd[fd])
        return arrived


_current: Optional[Ahead] = None
_making = threading.Lock()


def _of_this_process() -> Ahead:
    global _current, _making
    if _current is None or _current.pid != os.getpid():
        if _current is not None:
            _making = threading.Lock()  # the one that was inherited may be held by a thread that is not here
        with _making:
            if _current is None or _current.pid != os.getpid():
                _current = Ahead()
    return _current
