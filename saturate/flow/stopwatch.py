"""Time that one thread spends in one place, readable by another while it is still there.

The controller asks every tick how long the source made everybody wait. A source that blocks for a minute must
show in each of those ticks, not only in the last.
"""

from __future__ import annotations

import time
from typing import Optional


class Stopwatch:
    """Started and stopped by one thread; `take()` by one other. Races cost microseconds, never a lost wait."""

    def __init__(self) -> None:
        self._total = 0.0
        self._since: Optional[float] = None
        self._taken = 0.0

    def start(self) -> None:
        self._since = time.monotonic()

    def stop(self) -> None:
        since, self._since = self._since, None
        if since is not None:
            self._total += time.monotonic() - since

    def add(self, seconds: float) -> None:
        """Time measured elsewhere."""
        self._total += seconds

    def take(self) -> float:
        """Seconds since the last `take()`."""
        since = self._since
        total = self._total + (time.monotonic() - since if since is not None else 0.0)
        delta = max(0.0, total - self._taken)
        self._taken += delta
        return delta
