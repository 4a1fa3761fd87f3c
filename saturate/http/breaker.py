"""The circuit breaker: a dead endpoint pauses the run instead of burning every row's attempts.

Eight failed attempts in a row (5xx or no answer, over all rows) open it. While it is open nobody sends; exactly
one of the waiting threads probes the endpoint, at once and then every second, and the first answer that is not a
5xx closes it. After ten minutes without one it is dead for good and everyone gets FatalTransportError.

Invariant: a waiter is always released, by the circuit closing, its death, or its own cancellation.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, Optional

from saturate.http.errors import FatalTransportError, Interrupted

log = logging.getLogger("saturate")

THRESHOLD = 8
PROBE_EVERY_S = 1.0
DEAD_AFTER_S = 600.0
REMIND_EVERY_S = 30.0

Probe = Callable[[], Optional[str]]
"""Sends one probe. None when the server answered below 500; else what went wrong, for the log."""


class Breaker:
    """One circuit for one endpoint, shared by all request threads.

    `opens` counts how often it opened, `recoveries` how often something succeeded after failures: as long as it
    stays the same after a failure, nothing has shown that the server works.
    """

    def __init__(
        self,
        threshold: int = THRESHOLD,
        probe_every_s: float = PROBE_EVERY_S,
        dead_after_s: float = DEAD_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.opens = 0
        self.recoveries = 0
        self.dead: Optional[str] = None
        self._threshold = threshold
        self._probe_every_s = probe_every_s
        self._dead_after_s = dead_after_s
        self._clock = clock
        self._failures = 0
        self._last_error = ""
        self._opened_at: Optional[float] = None
        self._probing = False
        self._changed = threading.Condition()

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None

    def success(self) -> None:
        """An attempt was answered with a success."""
        # Read without the lock: at worst one success is late, and a busy run spares a lock a row.
        if self._failures:
            with self._changed:
                self._failures = 0
                self.recoveries += 1

    def failure(self, error: str) -> None:
        """An attempt failed with a 5xx or brought no answer."""
        with self._changed:
            self._failures += 1
            self._last_error = error
            if self._failures >= self._threshold and self._opened_at is None and self.dead is None:
                self._opened_at = self._clock()
                self.opens += 1
                log.warning(
                    "circuit OPEN after %d consecutive 5xx/transport failures (last: %s) - pausing admission, probing",
                    self._failures,
                    error[:200],
                )

    def gate(self, probe: Probe, cancelled: Callable[[], bool] = lambda: False) -> float:
        """Returns the seconds waited once the circuit is closed: 0.0 at once when it is.

        Raises FatalTransportError when it is dead, Interrupted when `cancelled()` turns true (looked at
        whenever `wake()` is called).
        """
        if self._opened_at is None and self.dead is None:
            return 0.0
        started = self._clock()
        while True:
            with self._changed:
                if cancelled():
                    raise Interrupted()
                if self.dead is not None:
                    raise FatalTransportError(self.dead)
                if self._opened_at is None:
                    return self._clock() - started
                if self._probing:
                    self._changed.wait(self._probe_every_s)
                    continue
                self._probing = True
            self._hold_probe(probe, cancelled)

    def wake(self) -> None:
        """Make every waiter look at its cancellation."""
        with self._changed:
            self._changed.notify_all()

    def _hold_probe(self, probe: Probe, cancelled: Callable[[], bool]) -> None:
        """Probe until the circuit closes, dies, or this thread is called off (then another takes over)."""
        reminded = self._clock()
        try:
            while True:
                if cancelled():
                    raise Interrupted()
                trouble = probe()
                with self._changed:
                    now = self._clock()
                    if trouble is None:
                        self._opened_at, self._failures = None, 0
                        self.recoveries += 1
                        log.warning("circuit CLOSED - server responding again, resuming admission")
                        return
                    opened = self._opened_at if self._opened_at is not None else now
                    if now - opened >= self._dead_after_s:
                        self._opened_at = None
                        self.dead = (
                            f"the endpoint has not answered for {now - opened:.0f} s (last: {trouble}); "
                            "what is finished is stored, run the same command again to resume"
                        )
                        return
                    if now - reminded >= REMIND_EVERY_S:
                        reminded = now
                        log.warning("circuit still open after %.0f s (%s) - probing", now - opened, trouble[:200])
                    self._changed.wait(self._probe_every_s)
        finally:
            with self._changed:
                self._probing = False
                self._changed.notify_all()
