"""Progress in plain lines: completions only, what was done before counted apart."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

log = logging.getLogger("saturate")

EVERY_S = 30.0


class Counts(Protocol):
    """What progress reads: `Stats` has these fields."""

    rows_processed: int
    rows_failed: int
    rows_done_prior: int


class Progress:
    """Says once in `every_s` seconds how far a run is. Called with each tick's record, from the controller thread."""

    def __init__(self, counts: Counts, every_s: float = EVERY_S):
        self._counts = counts
        self._every_s = every_s
        self._said_at = time.monotonic()
        self._said_rows = 0

    def __call__(self, tick: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._said_at < self._every_s:
            return
        rows = self._counts.rows_processed + self._counts.rows_failed
        rate = (rows - self._said_rows) / (now - self._said_at)
        self._said_at, self._said_rows = now, rows
        log.info(
            "%d done now (%d failed), %d before; %.1f rows/s, window %d, in flight %d%s",
            rows,
            self._counts.rows_failed,
            self._counts.rows_done_prior,
            rate,
            tick["limit"],
            tick["inflight"],
            f", bound by {tick['bound_by']}" if tick["bound_by"] else "",
        )
