"""Blocking request threads, as many as the window needs, resized while they run.

A thread takes a row, builds its request, waits for a slot, sends, parses and hands the result over. There are
`window + ahead` of them: when the window is full, the `ahead` others hold a built request that waits for a slot,
which is also the bound on such requests. A thread that sleeps through a backoff is replaced meanwhile.

Invariant: threads only ever start when there is a row to take, and the last one to leave after the end of the
rows says so exactly once.
"""

from __future__ import annotations

import threading
from typing import Callable


class RequestPool:
    """Threads that run `work()` until it returns. `work` must return when `excess()` says that it is one too many."""

    def __init__(self, work: Callable[[], None], backlog: Callable[[], int], emptied: Callable[[], None]):
        self.target = 1
        self._work = work
        self._backlog = backlog
        self._emptied = emptied
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._threads: set[threading.Thread] = set()
        self._started = 0
        self._ended = False
        self._said_empty = False

    @property
    def size(self) -> int:
        return len(self._threads)

    def resize(self, target: int) -> None:
        """Sets how many threads there should be; missing ones start as far as rows are waiting for them."""
        self.target = target
        for _ in range(min(target - self.size, self._backlog())):
            self.grow()

    def grow(self) -> None:
        """One more thread, unless there are enough or the rows have ended."""
        with self._lock:
            if len(self._threads) >= self.target or (self._ended and not self._backlog()):
                return
            self._started += 1
            thread = threading.Thread(target=self._run, name=f"saturate-request-{self._started}", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            # The process may have no more threads: go on with those there are, if there are any.
            with self._lock:
                self._threads.discard(thread)
                if not self._threads:
                    raise

    def excess(self) -> bool:
        """True for a thread that should leave: it is then already counted out."""
        if len(self._threads) <= self.target:
            return False
        with self._lock:
            if len(self._threads) <= self.target:
                return False
            self._threads.discard(threading.current_thread())
            return True

    def end(self) -> None:
        """No more rows will come."""
        with self._lock:
            self._ended = True
        self._say_if_empty()

    def idents(self) -> set[int]:
        """Thread idents of all that run."""
        with self._lock:
            return {thread.ident for thread in self._threads if thread.ident is not None}

    def has_current_thread(self) -> bool:
        """Whether the caller is one of the pool's threads."""
        return threading.current_thread() in self._threads

    def wait_empty(self, timeout_s: float) -> bool:
        """Waits until no thread is left; False when some still are after `timeout_s` seconds."""
        with self._left:
            return self._left.wait_for(lambda: not self._threads, timeout_s)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._left:
                self._threads.discard(threading.current_thread())
                self._left.notify_all()
            self._say_if_empty()

    def _say_if_empty(self) -> None:
        with self._lock:
            if self._said_empty or self._threads or not self._ended:
                return
            self._said_empty = True
        self._emptied()
