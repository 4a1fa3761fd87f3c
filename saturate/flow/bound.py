"""Which stage holds the run back in a tick. Pure.

The verdicts are the contract's: "source", "prep", "loop" (the consumer: the caller's loop or the sink), "engine",
or None when nothing stands out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

INPUT_SHARE = 0.25
"""A source or preparation that takes this share of a tick, with less than half the window in use, starves it."""

STAGE_SHARE = 0.5
"""Preparation or consumption that takes this share of a tick holds it back."""


@dataclass(frozen=True)
class TickTimes:
    """Seconds of one tick. `prep_s` is summed over the threads that prepare, `prep_threads` of them."""

    tick_s: float
    inflight: int
    limit: int
    source_s: float
    prep_s: float
    prep_threads: int
    consumer_s: float
    admission_s: float


def bound_by(t: TickTimes) -> tuple[Optional[str], bool]:
    """(verdict, whether the window was starved of input), the first rule that holds."""
    prep_each = t.prep_s / max(1, t.prep_threads)
    if t.inflight < 0.5 * t.limit and max(t.source_s, prep_each) >= INPUT_SHARE * t.tick_s:
        return ("source" if t.source_s >= prep_each else "prep"), True
    if prep_each >= STAGE_SHARE * t.tick_s:
        return "prep", False
    if t.consumer_s >= STAGE_SHARE * t.tick_s:
        return "loop", False
    if t.inflight >= t.limit or t.admission_s > t.source_s + t.prep_s:
        return "engine", False
    return None, False
