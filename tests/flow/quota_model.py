"""Servers with a quota, and a client of many threads, in virtual time: what the pacer's promises are measured on.

A server answers `admit(t)` with 0 (accepted) or the seconds until it would have room. The client is a closed loop as
in AdaptiveClient: a thread reserves its turn, waits, takes a slot, sends; refused, it gives its slot back, sleeps the
whole Retry-After (stretched by up to a fifth) and reserves again.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Optional

from saturate.flow.pacer import Pacer, Turn

NET_S = 0.01


class Bucket:
    """A token bucket, full at first."""

    def __init__(self, per_minute: float, size: Optional[float] = None):
        self.limit = per_minute
        self.size = per_minute if size is None else size
        self.level, self.at = self.size, 0.0

    def _settle(self, t: float) -> None:
        self.level = min(self.size, self.level + (t - self.at) * self.limit / 60)
        self.at = t

    def admit(self, t: float, cost: float = 1.0) -> float:
        self._settle(t)
        if self.level >= cost - 1e-9:
            self.level -= cost
            return 0.0
        return (cost - self.level) * 60 / self.limit

    def remaining(self, t: float) -> tuple[float, float]:
        """(left, seconds until full)."""
        return math.floor(self.level), (self.size - self.level) * 60 / self.limit


class FixedWindow:
    """A counter that starts anew every `window_s`; `phase_s` of the first has passed."""

    def __init__(self, limit: float, window_s: float = 60.0, phase_s: float = 0.0):
        self.limit, self.window_s, self.phase_s = limit, window_s, phase_s
        self.number, self.used = -1, 0.0

    def admit(self, t: float, cost: float = 1.0) -> float:
        number = int((t + self.phase_s) // self.window_s)
        if number != self.number:
            self.number, self.used = number, 0.0
        if self.used + cost <= self.limit:
            self.used += cost
            return 0.0
        return self.remaining(t)[1]

    def remaining(self, t: float) -> tuple[float, float]:
        return self.limit - self.used, (self.number + 1) * self.window_s - t - self.phase_s


class SlidingWindow:
    """A log of the last `window_s` seconds."""

    def __init__(self, limit: float, window_s: float = 60.0):
        self.limit, self.window_s = limit, window_s
        self.log: deque[float] = deque()

    def admit(self, t: float, cost: float = 1.0) -> float:
        while self.log and self.log[0] <= t - self.window_s:
            self.log.popleft()
        if len(self.log) < self.limit:
            self.log.append(t)
            return 0.0
        return self.log[0] + self.window_s - t

    def remaining(self, t: float) -> tuple[float, float]:
        return self.limit - len(self.log), (self.log[0] + self.window_s - t if self.log else 0.0)


def whole(wait: float, t: float) -> float:
    return math.ceil(wait)


def fraction(wait: float, t: float) -> float:
    return math.ceil(wait * 1000) / 1000


def date(wait: float, t: float) -> float:
    """An HTTP date has whole seconds; the clock is somewhere inside one."""
    return math.ceil(t + 0.37 + wait) - (t + 0.37)


def x_headers(server, t: float) -> dict[str, str]:
    left, reset = server.remaining(t)
    return {
        "x-ratelimit-limit-requests": f"{server.limit:.0f}",
        "x-ratelimit-remaining-requests": f"{left:.0f}",
        "x-ratelimit-reset-requests": f"{reset:.3f}s",
    }


def ietf_headers(server, t: float) -> dict[str, str]:
    left, reset = server.remaining(t)
    return {
        "ratelimit-limit": f"{server.limit:.0f}",
        "ratelimit-remaining": f"{left:.0f}",
        "ratelimit-reset": f"{math.ceil(reset)}",
    }


def no_headers(server, t: float) -> dict[str, str]:
    return {}


@dataclass
class Log:
    """When requests arrived at the server, and what became of them."""

    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    tokens: list[tuple[float, float]] = field(default_factory=list)

    def refusals(self, start: float, end: float) -> float:
        """The share of requests in these seconds that got a 429."""
        ok, no = _within(self.accepted, start, end), _within(self.refused, start, end)
        return no / max(1, ok + no)

    def used(self, start: float, end: float, per_minute: float) -> float:
        """The share of the quota that was used in these seconds."""
        return _within(self.accepted, start, end) / (per_minute * (end - start) / 60)


def _within(times: list[float], start: float, end: float) -> int:
    return sum(start <= t < end for t in times)


def run(
    pacer: Pacer,
    server,
    seconds: float,
    window: int = 64,
    latency_s: Callable[[random.Random], float] = lambda rng: rng.uniform(0.1, 0.4),
    retry_after: Optional[Callable[[float, float], float]] = whole,
    headers: Callable[..., dict[str, str]] = no_headers,
    cost: Callable[[random.Random], float] = lambda rng: 1.0,
    estimate: float = 0.0,
    at: Optional[dict[float, Callable[[], None]]] = None,
    clock: Callable[[float], float] = lambda t: t,
    threads: Optional[int] = None,
    seed: int = 0,
) -> Log:
    """Runs `window + 4` threads (and as many again for those that sleep) for `seconds`; `at`: what happens when."""
    rng = random.Random(seed)
    log = Log()
    order = itertools.count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    free, queue, serial, parked, alive = window, deque(), 0, 0, 0
    pacer.start(clock(0.0))

    def later(t: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (t, next(order), what))

    def row(t: float) -> None:
        turn = pacer.reserve(clock(t), estimate) if pacer.pacing else None
        wait(t, turn)

    def wait(t: float, turn: Optional[Turn]) -> None:
        seconds = pacer.wait_s(clock(t), turn) if turn is not None else 0.0
        if seconds > 0:
            later(t + seconds, lambda t: wait(t, turn))
        else:
            queue.append(turn)
            serve(t)

    def serve(t: float) -> None:
        nonlocal free, serial
        while free and queue:
            turn = queue.popleft()
            free -= 1
            serial += 1
            later(t + NET_S * rng.uniform(0.5, 1.5), lambda a, s=t, n=serial, turn=turn: arrive(a, s, n, turn))

    def arrive(t: float, sent: float, number: int, turn: Optional[Turn]) -> None:
        tokens = cost(rng)
        lacks = server.admit(t, tokens)
        heads = headers(server, t)
        if lacks <= 0:
            log.accepted.append(t)
            log.tokens.append((t, tokens))
            later(t + latency_s(rng), lambda t: answered(t, sent, tokens, heads, turn))
        else:
            log.refused.append(t)
            asked = retry_after(lacks, t) if retry_after is not None else None
            later(t + NET_S, lambda t: turned_away(t, sent, number, asked, heads))

    def answered(t: float, sent: float, tokens: float, heads: dict[str, str], turn: Optional[Turn]) -> None:
        nonlocal free
        free += 1
        if pacer.listening:
            pacer.accepted(clock(t), clock(sent), tokens, heads, turn)
        serve(t)
        leave_or_go_on(t)

    def turned_away(t: float, sent: float, number: int, asked: Optional[float], heads: dict[str, str]) -> None:
        nonlocal free, parked
        free += 1
        pacer.refused(clock(t), clock(sent), number, asked, heads)
        parked += 1
        later(t + (asked if asked is not None else rng.uniform(0, 8)) * (1 + 0.2 * rng.random()), again)
        serve(t)
        populate(t)

    def again(t: float) -> None:
        nonlocal parked
        parked -= 1
        row(t)

    def leave_or_go_on(t: float) -> None:
        nonlocal alive
        if alive > target():
            alive -= 1
        else:
            row(t)

    def target() -> int:
        return (threads or window + 4) + min(parked, window + 4)

    def populate(t: float) -> None:
        nonlocal alive
        while alive < target():
            alive += 1
            row(t)

    for when, what in (at or {}).items():
        later(when, lambda t, what=what: what())
    populate(0.0)
    while events and events[0][0] < seconds:
        t, _, what = heapq.heappop(events)
        what(t)
    return log
