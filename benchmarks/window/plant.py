"""A server and its client in virtual time: what would this window have delivered?

The server is a fluid. Every running request advances at the same speed, and a request is done when the
speed integrated over its stay reaches its length. So the whole state is one clock of attained service,
a heap of the readings at which requests finish, and a queue; a run costs one heap operation a row, however
long the rows are. What differs between servers is a table of small functions: the total speed at `n`
running (`Curve`), how many may run (`seats`, `kv`), who is turned away (`cap`, `patience`, `flaky`), what
the server says about itself (`gauges`) and how all of it changes with time (`phases`).

The client keeps `limit` rows in flight and follows the rules the real one follows: a refused row gives its
slot back while it waits, and that slot stays closed until the next tick; with `hold_slot` the row sleeps
inside its slot instead. A row is given up after five attempts.

The same seed gives the same run, to the digit.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Optional, Union

TICK_S = 2.0
ATTEMPTS = 5
Phase = tuple[float, float, float]                  # from this second on: speed x, seats x


# -- curves: tokens a second of all running requests together, by how many are running -------------------

@dataclass(frozen=True)
class Saturating:
    """`one` tokens/s alone; half of the ceiling (`one * half`) is reached at about `half` running."""

    one: float
    half: float

    def __call__(self, n: int) -> float:
        return self.one * n / (1.0 + (n - 1) / self.half)


@dataclass(frozen=True)
class Falling:
    """Saturating up to `knee`; past it each doubling loses the share `fall` (swapping, cache thrash)."""

    one: float
    half: float
    knee: int
    fall: float

    def __call__(self, n: int) -> float:
        top = Saturating(self.one, self.half)(min(n, self.knee))
        return top if n <= self.knee else top * (1.0 - self.fall) ** math.log2(n / self.knee)


@dataclass(frozen=True)
class Points:
    """Straight lines through measured points: stairs and false plateaus."""

    xy: tuple[tuple[int, float], ...]

    def __call__(self, n: int) -> float:
        x0, y0 = 0, 0.0
        for x1, y1 in self.xy:
            if n <= x1:
                return y0 + (y1 - y0) * (n - x0) / (x1 - x0)
            x0, y0 = x1, y1
        return y0


# -- lengths: tokens a row, by its number ----------------------------------------------------------------

@dataclass(frozen=True)
class Constant:
    mean: float

    def __call__(self, rng: random.Random, number: int) -> float:
        return self.mean


@dataclass(frozen=True)
class Lognormal:
    mean: float
    sigma: float

    def __call__(self, rng: random.Random, number: int) -> float:
        middle = self.mean * math.exp(-self.sigma ** 2 / 2)
        return min(40 * self.mean, middle * math.exp(rng.gauss(0.0, self.sigma)))


@dataclass(frozen=True)
class Bimodal:
    """Nine short rows to one that is twelve times as long."""

    mean: float

    def __call__(self, rng: random.Random, number: int) -> float:
        return (12.0 if rng.random() < 0.1 else 1.0) * self.mean / 2.1 * rng.uniform(0.8, 1.2)


@dataclass(frozen=True)
class Sorted:
    """A dataset sorted by length: the mean drifts from `first` to `last` over `rows` rows."""

    first: float
    last: float
    rows: int

    def __call__(self, rng: random.Random, number: int) -> float:
        drift = min(1.0, number / self.rows)
        return (self.first + (self.last - self.first) * drift) * rng.uniform(0.8, 1.2)


Curve = Union[Saturating, Falling, Points]
Length = Union[Constant, Lognormal, Bimodal, Sorted]


@dataclass(frozen=True)
class Server:
    """One server and workload. Seconds, tokens, requests; None switches a limit off."""

    name: str
    curve: Curve
    length: Length
    seconds: float = 600.0
    prompt: float = 100.0              # prompt tokens a row
    prompt_s: float = 0.0              # seconds of the whole server that letting in one row costs
    seats: Optional[int] = None        # more than this wait in a queue
    kv: Optional[float] = None         # tokens held by running rows; past it the youngest starts again
    cap: Optional[int] = None          # more than this in queue and running: 429
    retry_after: Optional[float] = None
    patience: Optional[float] = None   # a gateway that answers 504 to a row queued for longer
    flaky: float = 0.0                 # share of requests that fail with a 500 for no reason of load
    batch: bool = False                # a batch starts together and ends together
    gauges: str = "full"               # full | none | undercount | replica | shared
    usage: bool = True
    source: Optional[float] = None     # rows a second that the dataset yields
    phases: tuple[Phase, ...] = ()
    wire: float = 0.01                 # seconds between an answer and the next request of that slot
    seed: int = 1


@dataclass
class Row:
    number: int
    length: float
    taken: float = 0.0                 # when it got its slot
    sent: float = 0.0
    queued: float = 0.0
    start: float = 0.0                 # reading of the service clock when it was let in
    attempt: int = 0
    place: int = 0                     # order of arrival at the server


@dataclass
class Run:
    """What a run delivered."""

    tokens: float = 0.0
    rows: int = 0
    refused: int = 0
    lost: int = 0
    mean_inflight: float = 0.0
    trace: list[tuple[float, int, float, str]] = field(default_factory=list)   # second, window, tokens/s, reason

    @property
    def value(self) -> float:
        return self.tokens * self.rows / max(1, self.rows + self.lost)


class Hold:
    """A fixed window."""

    last_reason = "hold"

    def __init__(self, n: int) -> None:
        self.initial = n

    def decide(self, obs: dict[str, Any], limit: int) -> int:
        return self.initial


class _World:
    """Server and client of one run."""

    def __init__(self, server: Server, controller: Any, hold_slot: bool) -> None:
        self.s, self.controller, self.hold_slot = server, controller, hold_slot
        self.rng = random.Random(server.seed)
        self.luck = random.Random(server.seed + 7)
        self.now = 0.0
        self.clock = 0.0                                       # attained service of a row that never waited
        self.limit = int(controller.initial)
        self.queue: deque[Row] = deque()
        self.running: dict[int, Row] = {}
        self.ends: list[tuple[float, int, float]] = []            # service clock, place, its start
        self.events: list[tuple[float, int, str, Row]] = []    # on the wire or waiting to be sent again
        self.again: deque[Row] = deque()                       # ready to be sent again, without a slot
        self.held: dict[int, Row] = {}
        self.closed = 0
        self.born = self.places = 0
        self.debt = 0.0                                        # seconds of prompt work the server still owes
        self.kv = 0.0
        self.work = 0.0
        self.preempts = 0
        self.run = Run()
        self.ok = self.bp = self.paced = 0
        self.tok = self.total_tok = 0.0
        self.latencies: deque[float] = deque(maxlen=128)
        self.source_next = 0.0
        self.starved = 0.0
        self.area = 0.0

    # server ------------------------------------------------------------------------------------------
    def _phase(self) -> tuple[float, float]:
        speed = seats = 1.0
        for since, x, y in self.s.phases:
            if self.now >= since:
                speed, seats = x, y
        return speed, seats

    def _seats(self) -> float:
        return math.inf if self.s.seats is None else max(1.0, self.s.seats * self._phase()[1])

    def _speed(self) -> float:
        n = len(self.running)
        return self.s.curve(n) * self._phase()[0] / n if n else 0.0

    def _let_in(self) -> None:
        if self.s.batch and self.running:
            return
        while self.queue and len(self.running) < self._seats():
            row = self.queue[0]
            if self.s.kv is not None and self.running and self.kv + self.s.prompt > self.s.kv:
                break
            self.queue.popleft()
            row.start = self.clock
            self.running[row.place] = row
            heapq.heappush(self.ends, (self.clock + row.length, row.place, row.start))
            self.kv += self.s.prompt
            if self.s.prompt_s:
                self.debt += self.s.prompt_s
            else:
                self.work += self.s.prompt
        if self.s.batch and self.running:                     # the longest of a batch holds up the rest
            longest = max(r.length for r in self.running.values())
            self.ends = [(self.clock + longest, r.place, r.start) for r in self.running.values()]
            heapq.heapify(self.ends)

    def _current(self, end: tuple[float, int, float]) -> bool:
        row = self.running.get(end[1])
        return row is not None and row.start == end[2]        # else it was preempted since

    def _arrive(self, row: Row) -> None:
        row.sent = self.now
        inside = len(self.queue) + len(self.running)
        if self.luck.random() < self.s.flaky:
            self._fail(row, None)
        elif self.s.cap is not None and inside >= max(1, int(self.s.cap * self._phase()[1])):
            self._fail(row, self.s.retry_after)
        else:
            self.places += 1
            row.place, row.queued = self.places, self.now
            self.queue.append(row)
            if self.s.patience is not None:
                heapq.heappush(self.events, (self.now + self.s.patience, row.number, "tire", row))

    def _tire(self, row: Row) -> None:
        if row.place not in self.running and row in self.queue and self.now - row.queued >= self.s.patience - 1e-9:
            self.queue.remove(row)
            self._fail(row, None)

    def _finish(self, place: int) -> None:
        row = self.running.pop(place)
        self.kv -= self.s.prompt + self.clock - row.start
        self.held.pop(row.number)
        self.ok += 1
        self.tok += row.length + self.s.prompt
        self.run.rows += 1
        self.run.tokens += row.length + self.s.prompt
        self.latencies.append(self.now - row.sent + self.s.wire)

    def _preempt(self) -> None:
        while self.s.kv is not None and self.kv > self.s.kv and len(self.running) > 1:
            row = self.running.pop(max(self.running))
            self.kv -= self.s.prompt + self.clock - row.start
            self.queue.appendleft(row)
            self.preempts += 1

    # client ------------------------------------------------------------------------------------------
    def _fail(self, row: Row, retry_after: Optional[float]) -> None:
        self.run.refused += 1
        if retry_after is None:
            self.bp += 1
        else:
            self.paced += 1
        wait = self.luck.uniform(0.0, min(60.0, 2.0 ** row.attempt)) if retry_after is None else retry_after
        row.attempt += 1
        if self.hold_slot and row.attempt < ATTEMPTS:
            heapq.heappush(self.events, (self.now + wait, row.number, "arrive", row))
            return
        self.held.pop(row.number)
        if not self.hold_slot:
            self.closed += 1
        if row.attempt >= ATTEMPTS:
            self.run.lost += 1
        else:
            heapq.heappush(self.events, (self.now + wait, row.number, "ready", row))

    def _send(self) -> None:
        while len(self.held) < self.limit - self.closed:
            if self.again:
                row = self.again.popleft()
            elif self.s.source is not None and self.source_next > self.now:
                return
            else:
                if self.s.source is not None:
                    self.source_next = max(self.source_next, self.now - 4 / self.s.source) + 1 / self.s.source
                row = Row(self.born, self.s.length(self.rng, self.born))
                self.born += 1
            row.taken = self.now
            self.held[row.number] = row
            heapq.heappush(self.events, (self.now + self.s.wire, row.number, "arrive", row))

    # time --------------------------------------------------------------------------------------------
    def _next(self, tick: float) -> tuple[float, str]:
        best, what = tick, "tick"
        if self.events and self.events[0][0] < best:
            best, what = self.events[0][0], "event"
        if (self.s.source is not None and not self.again and len(self.held) < self.limit - self.closed
                and self.now < self.source_next < best):
            best, what = self.source_next, "row"
        speed = self._speed()
        if speed > 0:
            while self.ends and not self._current(self.ends[0]):
                heapq.heappop(self.ends)
            at = self.now + self.debt + (self.ends[0][0] - self.clock) / speed
            if at < best:
                best, what = at, "finish"
            if self.s.kv is not None and len(self.running) > 1:
                at = self.now + self.debt + (self.s.kv - self.kv + 1e-6) / (speed * len(self.running))
                if at < best:
                    best, what = max(at, self.now), "preempt"
        for since, _, _ in self.s.phases:
            if self.now < since < best:
                best, what = since, "phase"
        return best, what

    def _advance(self, to: float) -> None:
        dt = max(0.0, to - self.now)
        self.area += dt * len(self.held)
        if self.s.source is not None and not self.again and len(self.held) < self.limit - self.closed:
            self.starved += dt
        decode = max(0.0, dt - self.debt)
        if self.s.prompt_s:
            self.work += (dt - decode) * self.s.prompt / self.s.prompt_s
        self.debt = max(0.0, self.debt - dt)
        served = decode * self._speed()
        self.clock += served
        self.kv += served * len(self.running)
        self.work += served * len(self.running)
        self.now = to

    def go(self) -> Run:
        tick = TICK_S
        while self.now < self.s.seconds:
            self._send()
            self._let_in()
            at, what = self._next(tick)
            self._advance(at)
            if what == "event":
                _, _, kind, row = heapq.heappop(self.events)
                if kind == "arrive":
                    self._arrive(row)
                elif kind == "ready":
                    self.again.append(row)
                else:
                    self._tire(row)
            elif what == "finish":
                end = self.ends[0][0]
                self.clock = max(self.clock, end)
                while self.ends and self.ends[0][0] <= end:
                    last = heapq.heappop(self.ends)
                    if self._current(last):
                        self._finish(last[1])
            elif what == "preempt":
                self._preempt()
            elif what == "tick":
                self._tick()
                tick += TICK_S
        self.run.mean_inflight = self.area / self.now
        return self.run

    def _tick(self) -> None:
        if not isinstance(self.controller, Hold):
            self._decide()
        self.ok = self.bp = self.paced = self.closed = 0
        self.tok = self.starved = 0.0

    def _decide(self) -> None:
        s = self.s
        self.total_tok += self.tok
        seen = s.gauges in ("full", "replica", "shared")
        share = 0.25 if s.gauges == "replica" else 1.0
        waiting: Optional[float] = len(self.queue) * share
        running: Optional[float] = len(self.running) * share
        engine: Optional[float] = self.work * share
        if s.gauges == "shared":                              # another tenant comes and goes, at our own size
            busy = math.sin(self.now / 40.0) > 0
            running = (running or 0) + (30 if busy else 0)
            self.work += self.total_tok / max(1.0, self.now) * TICK_S if busy else 0.0
        if s.gauges == "undercount":
            waiting, running, engine = 0.0, len(self.running) // 3, None
        if s.gauges == "none":
            waiting = running = engine = None
        tok_s: Optional[float] = None
        if s.usage and (self.tok or (self.held and self.total_tok)):
            tok_s = self.tok / TICK_S
        latencies = sorted(self.latencies)
        self.limit = max(1, int(self.controller.decide({
            "waiting": waiting, "running": running, "inflight": len(self.held), "backpressure": self.bp,
            "rate_limited": self.paced, "successes": self.ok,
            "input_bound": len(self.held) < 0.5 * self.limit and self.starved >= 0.25 * TICK_S,
            "kv": min(1.0, self.kv / s.kv) if seen and s.kv else None, "hits": None, "tok_s": tok_s,
            "preempts": self.preempts if seen else None,
            "latency_s": latencies[len(latencies) // 2] if latencies else None,
            "oldest_s": self.now - min(r.taken for r in self.held.values()) if self.held else None,
            "tick_s": TICK_S, "engine_tokens": engine}, self.limit)))
        reason = str(getattr(self.controller, "last_reason", ""))
        self.run.trace.append((self.now, self.limit, self.tok / TICK_S, reason))


def simulate(server: Server, controller: Any, hold_slot: bool = False) -> Run:
    """Run `controller` (``initial``, ``decide(obs: dict, limit) -> int``) on `server` for `server.seconds`."""
    return _World(server, controller, hold_slot).go()


WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def sweep(server: Server) -> dict[int, float]:
    """Delivered value of every fixed window worth trying: what a patient operator would have found."""
    top = 1024 if server.cap is None else min(1024, 4 * server.cap)   # past that a fixed window only collects 429s
    return {n: simulate(server, Hold(n)).value for n in WINDOWS if n <= top}


def smallest_good(values: dict[int, float]) -> int:
    """The smallest window within 1 % of the best."""
    best = max(values.values())
    return min(n for n, v in values.items() if v >= 0.99 * best)


def reseeded(server: Server, seed: int) -> Server:
    return replace(server, seed=seed)
