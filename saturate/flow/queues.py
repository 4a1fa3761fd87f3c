"""The two bounded queues of a run: rows on their way to the request threads, results on their way to the caller.

Both ride on the C-implemented SimpleQueue, so a row costs no Python-level lock while a queue is neither full nor
empty; only the side that must wait takes one. Invariant: a full queue blocks its writers until readers have
halved it (so that a wake-up moves several items), and `open_up()` releases every writer for good.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Generic, Optional, TypeVar

from saturate.flow.stopwatch import Stopwatch

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """First in, first out. `bound` may be changed while it is used; writers may overshoot it by one item each."""

    def __init__(self, bound: int, full: Optional[Stopwatch] = None):
        self.bound = bound
        self._items: SimpleQueue[T] = SimpleQueue()
        self._room = threading.Condition()
        self._waiting = 0
        self._open = False
        self._full = full if full is not None else Stopwatch()

    def put(self, item: T) -> None:
        """Adds an item, then blocks while the queue is full."""
        self._items.put(item)
        self.wait_for_room()

    def wait_for_room(self) -> None:
        """Blocks while the queue is full; once full, until it is down to half."""
        if self._items.qsize() >= self.bound and not self._open:
            self._wait_until_half()

    def put_over(self, item: T) -> None:
        """Adds an item without regard to the bound: for marks that must not wait."""
        self._items.put(item)

    def get(self) -> T:
        """The next item; blocks until there is one."""
        item = self._items.get()
        self._tell_writers()
        return item

    def get_now(self) -> Optional[T]:
        """The next item, or None when there is none."""
        try:
            item = self._items.get_nowait()
        except Empty:
            return None
        self._tell_writers()
        return item

    def open_up(self) -> None:
        """No writer waits any more, now or later."""
        self._open = True
        with self._room:
            self._room.notify_all()

    def __len__(self) -> int:
        return self._items.qsize()

    def _tell_writers(self) -> None:
        # A writer raises `_waiting` and then looks at the size, a reader lowers the size and then looks at
        # `_waiting`: one of the two always sees the other.
        if self._waiting and self._items.qsize() <= self.bound // 2:
            with self._room:
                self._room.notify_all()

    def _wait_until_half(self) -> None:
        with self._room:
            self._waiting += 1
            if self._waiting == 1:
                self._full.start()
            try:
                while self._items.qsize() > self.bound // 2 and not self._open:
                    self._room.wait()
            finally:
                self._waiting -= 1
                if self._waiting == 0:
                    self._full.stop()
