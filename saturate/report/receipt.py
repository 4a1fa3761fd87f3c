"""The receipt of a run: what bound it, and how near its window came to the best that was seen. Pure: ticks in.

Work is counted in tokens a second where the endpoint reports usage, else in rows a second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Optional

MIN_TICKS = 5
"""Fewer say nothing that would hold for a longer run."""

TELLING_SHARE = 0.3
"""A stage that holds back this share of the ticks is what bound the run."""

BUSY = 0.9
"""Seconds of this process's CPU per second from which Python, which runs one thread at a time, is the limit."""

PACED_SHARE = 0.5
"""Thread-seconds spent waiting for the quota, per second."""

Ticks = Sequence[dict[str, Any]]


def receipt(ticks: Ticks, final_limit: int) -> Optional[str]:
    """One line, such as "bound by the server: window 240; 98-100 % of the best window tried; the ramp cost 11 s".

    None for a run of fewer than `MIN_TICKS` ticks.
    """
    steps = _steps(ticks)
    if len(steps) < MIN_TICKS:
        return None
    parts = [f"bound by {bound(ticks)}: window {final_limit}"]
    share = _share_of_best(steps, final_limit)
    if share is not None:
        low, high = share
        parts.append(f"{low}-{high} % of the best window tried" if low < high else f"{low} % of the best window tried")
    parts.append(f"the ramp cost {_ramp_cost_s(steps, final_limit):.0f} s")
    return "; ".join(parts)


def bound(ticks: Ticks) -> str:
    """What held the run back for most of it, in a reader's words."""
    steps = _steps(ticks)
    seconds = sum(step.seconds for step in steps) or 1.0
    shares = {
        "the rate limit": sum(s.seconds for s in steps if s.tick.get("pace_s", 0.0) >= PACED_SHARE * s.seconds),
        "this client's CPU": sum(s.seconds for s in steps if s.tick.get("cpu_s", 0.0) >= BUSY * s.seconds),
        "the source": sum(s.seconds for s in steps if s.tick["bound_by"] == "source"),
        "to_request": sum(s.seconds for s in steps if s.tick["bound_by"] == "prep"),
        "the sink or the loop body": sum(s.seconds for s in steps if s.tick["bound_by"] == "loop"),
    }
    name = max(shares, key=lambda key: shares[key])
    if shares[name] >= TELLING_SHARE * seconds:
        return name
    capped = sum(s.seconds for s in steps if s.tick["reason"] == "hold:ceiling" or _fixed(s.tick))
    return "the window" if capped >= TELLING_SHARE * seconds else "the server"


class _Step:
    """One tick with its length and the work that came back in it."""

    __slots__ = ("rate", "seconds", "tick")

    def __init__(self, tick: dict[str, Any], seconds: float, in_tokens: bool):
        self.tick = tick
        self.seconds = seconds
        self.rate: float = (tick["tok_s"] or 0.0) if in_tokens else tick["ok"] / seconds


def _steps(ticks: Ticks) -> list[_Step]:
    in_tokens = any(tick["tok_s"] for tick in ticks)
    steps, before = [], 0.0
    for tick in ticks:
        seconds = tick["t"] - before
        before = tick["t"]
        # The last, partial tick drains the window: its rate says nothing about any window.
        if seconds > 0 and tick["reason"] != "end":
            steps.append(_Step(tick, seconds, in_tokens))
    return steps


def _fixed(tick: dict[str, Any]) -> bool:
    """A window that a user set, with every slot of it in use."""
    return bool(tick["reason"] == "hold" and tick["inflight"] >= tick["limit"])


def _share_of_best(steps: list[_Step], final_limit: int) -> Optional[tuple[int, int]]:
    """Percent of the best window's mean rate that the final window delivers: mean less and plus its standard error."""
    rates: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        rates[step.tick["limit"]].append(step.rate)
    tried = {limit: got for limit, got in rates.items() if len(got) >= 2}
    if final_limit not in tried:
        return None
    best = max(_mean(got) for got in tried.values())
    if best <= 0:
        return None
    own = tried[final_limit]
    mean = _mean(own)
    error = math.sqrt(sum((rate - mean) ** 2 for rate in own) / (len(own) - 1) / len(own))
    return math.floor(100 * max(0.0, mean - error) / best), math.floor(100 * min(best, mean + error) / best)


def _ramp_cost_s(steps: list[_Step], final_limit: int) -> float:
    """Seconds at the final rate that the ticks before the window first came near its final size fell short by."""
    target = _mean([step.rate for step in steps if step.tick["limit"] == final_limit] or [s.rate for s in steps])
    cost = 0.0
    for step in steps:
        if step.tick["limit"] >= 0.8 * final_limit or target <= 0:
            break
        cost += max(0.0, 1.0 - step.rate / target) * step.seconds
    return cost


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
