"""The window: how many requests may be on the wire, and who waits for a slot.

Invariants: `inflight` never exceeds the limit in force when a slot was given, and the bytes of requests in flight
never exceed `max_bytes` (except that one request alone always may go); a slot is given back exactly once; a waiter is
always released (a slot, cancellation, or the window's failure). Retries are served before new rows, and rows in the
order in which they came: a large request is not overtaken by small ones for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Optional

from saturate.http.errors import FatalTransportError, Interrupted


class _Waiter:
    __slots__ = ("granted", "lock", "owner", "size", "verdict")

    def __init__(self, owner: int, size: int):
        self.owner = owner
        self.size = size
        self.granted = False
        self.verdict: Optional[type[BaseException]] = None
        self.lock = threading.Lock()
        self.lock.acquire()


class Window:
    """A resizable count of slots. `limit` is what the controller set; `closed` slots are those of refused requests."""

    def __init__(self, limit: int, max_bytes: Optional[int] = None):
        self.limit = limit
        self.max_bytes = max_bytes
        self.inflight = 0
        self.bytes = 0
        self.closed = 0
        self._lock = threading.Lock()
        self._retries: deque[_Waiter] = deque()
        self._fresh: deque[_Waiter] = deque()
        self._failure: Optional[str] = None

    def acquire(self, retry: bool = False, size: int = 0) -> bool:
        """Blocks until a slot is this thread's, for a request of `size` bytes; True if it had to wait.

        Raises FatalTransportError when the window has failed, Interrupted when `cancel` named this thread.
        """
        with self._lock:
            if self._failure is not None:
                raise FatalTransportError(self._failure)
            if not self._retries and (retry or not self._fresh) and self._has_room(size):
                self._take(size)
                return False
            waiter = _Waiter(threading.get_ident(), size)
            queue = self._retries if retry else self._fresh
            queue.append(waiter)
        try:
            waiter.lock.acquire()
        except BaseException:
            # Ctrl-C while waiting: leave the queue, and give back a slot that came in the same moment.
            with self._lock:
                if waiter.granted:
                    self._give_back(size)
                elif waiter in queue:
                    queue.remove(waiter)
            raise
        if waiter.granted:
            return True
        if waiter.verdict is Interrupted:
            raise Interrupted()
        raise FatalTransportError(self._failure or "the window was closed")

    def release(self, size: int = 0) -> None:
        """Gives one slot back, taken for `size` bytes."""
        with self._lock:
            self._give_back(size)

    def refuse(self) -> None:
        """A request was refused: one slot stays closed until the next tick, so that a full server is not stormed.

        One slot always stays open, or a small window would stand still for a tick after every refusal.
        """
        with self._lock:
            self.closed = min(self.closed + 1, max(0, self.limit - 1))

    def resize(self, limit: int) -> None:
        """Sets the limit and opens the closed slots again: a new tick."""
        with self._lock:
            self.limit = limit
            self.closed = 0
            self._grant()

    def fail(self, message: str) -> None:
        """No more slots: every waiter and every later caller gets FatalTransportError with this message."""
        with self._lock:
            self._failure = message
            for queue in (self._retries, self._fresh):
                while queue:
                    self._dismiss(queue.popleft(), FatalTransportError)

    def cancel(self, owners: set[int]) -> None:
        """The waiting threads among `owners` (thread idents) get Interrupted."""
        with self._lock:
            for queue in (self._retries, self._fresh):
                leaving = [waiter for waiter in queue if waiter.owner in owners]
                for waiter in leaving:
                    queue.remove(waiter)
                    self._dismiss(waiter, Interrupted)

    def _has_room(self, size: int) -> bool:
        if self.inflight >= self.limit - self.closed:
            return False
        return self.max_bytes is None or not self.inflight or self.bytes + size <= self.max_bytes

    def _take(self, size: int) -> None:
        self.inflight += 1
        self.bytes += size

    def _give_back(self, size: int) -> None:
        self.inflight -= 1
        self.bytes -= size
        if self._retries or self._fresh:
            self._grant()

    def _grant(self) -> None:
        while self._retries or self._fresh:
            queue = self._retries or self._fresh
            if not self._has_room(queue[0].size):
                return
            waiter = queue.popleft()
            self._take(waiter.size)
            waiter.granted = True
            waiter.lock.release()

    @staticmethod
    def _dismiss(waiter: _Waiter, verdict: type[BaseException]) -> None:
        waiter.verdict = verdict
        waiter.lock.release()
