"""The controller thread: every tick it gathers, decides, applies and records.

It holds the clock; the controller itself is pure. Invariant: if anything in a tick raises, the window fails, so
that no request thread waits for a decision that will never come.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Optional, Protocol, runtime_checkable

from saturate.flow.bound import TickTimes, bound_by
from saturate.flow.controller import Obs
from saturate.flow.stopwatch import Stopwatch
from saturate.flow.window import Window

log = logging.getLogger("saturate")

TICK_S = 2.0
FIRST_SCRAPE_S = 1.0
"""How long requests wait for the first look at the gauges."""

STALL_S = 30.0
"""Silence with requests in flight after which the log says so; then at every doubling."""


@dataclass
class Tick:
    """What was counted since the last tick."""

    ok: int = 0
    bp: int = 0
    rate_limited: int = 0
    tokens: float = 0
    tokens_observable: bool = False
    prep_s: float = 0.0
    prep_n: int = 0
    admission_s: float = 0.0
    pace_s: float = 0.0


@runtime_checkable
class Controller(Protocol):
    """What `window=` takes: `Auto`, `Fixed`, or any object that decides. `initial` is optional, 16 by default."""

    last_reason: str

    def decide(self, obs: Any, limit: int) -> int: ...


class Signals(Protocol):
    """Where gauges come from: waiting, running, kv, hits, preempts, engine_tokens, each a number or None."""

    def read(self) -> Optional[dict[str, Optional[float]]]: ...


class Watched(Protocol):
    """What the monitor needs of a limiter."""

    window: Window
    signals: Optional[Signals]
    source: Stopwatch
    consumer: Stopwatch
    prep_workers: int
    pace_rpm: Optional[float]

    @property
    def latency_s(self) -> Optional[float]: ...

    @property
    def oldest_s(self) -> Optional[float]: ...

    @property
    def parked_threads(self) -> int: ...

    def take_tick(self) -> Tick: ...

    def publish(self, limit: int, record: dict[str, Any]) -> None: ...


class Monitor:
    """Runs one limiter's ticks in a thread of its own between `start()` and `stop()`."""

    def __init__(self, limiter: Watched, controller: Controller, tick_s: float):
        self.died: Optional[BaseException] = None
        self._limiter = limiter
        self._controller = controller
        self._tick_s = tick_s
        self._stop = threading.Event()
        self._scraped = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._started = self._last = time.monotonic()
        self._cpu_s = 0.0
        self._silent_s = 0.0
        self._say_at_s = STALL_S

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("this limiter is already open; make one for each `with` block")
        self._started = self._last = time.monotonic()
        self._cpu_s = time.process_time()
        self._thread = threading.Thread(target=self._run, name="saturate-controller", daemon=True)
        self._thread.start()
        self._scraped.wait(FIRST_SCRAPE_S)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # A tick may be in the middle of a scrape; it changes nothing any more, so it is not waited for long.
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        try:
            # An engine with as many threads as slots (llama.cpp) serves the connections that came first: a scrape
            # that connects after the requests waits until one of theirs is closed.
            if self._limiter.signals is not None:
                self._limiter.signals.read()
            self._scraped.set()
            while not self._stop.wait(self._tick_s):
                self._run_tick(deciding=True)
            self._run_tick(deciding=False)
        except BaseException as exc:
            self.died = exc
            self._limiter.window.fail(f"controller loop died: {type(exc).__name__}: {exc}")
            log.error("controller loop died: %s: %s", type(exc).__name__, exc)

    def _run_tick(self, deciding: bool) -> None:
        limiter = self._limiter
        before = time.monotonic()
        gauges = limiter.signals.read() if limiter.signals is not None and deciding else None
        now = time.monotonic()
        scrape_s, dt, self._last = now - before, now - self._last, now
        tick = limiter.take_tick()
        if not deciding and not (tick.ok or tick.bp or tick.rate_limited):
            return
        gauges = gauges or {}
        cpu_s, self._cpu_s = self._cpu_s, time.process_time()
        cpu_s = self._cpu_s - cpu_s
        limit, inflight = limiter.window.limit, limiter.window.inflight
        source_s, consumer_s = limiter.source.take(), limiter.consumer.take()
        verdict, input_bound = bound_by(
            TickTimes(
                tick_s=dt,
                inflight=inflight,
                limit=limit,
                source_s=source_s,
                prep_s=tick.prep_s,
                prep_threads=limit + max(limiter.prep_workers, 1),
                consumer_s=consumer_s,
                admission_s=tick.admission_s,
            )
        )
        tok_s = tick.tokens / dt if dt > 0 else 0.0
        obs = Obs(
            waiting=gauges.get("waiting"),
            running=gauges.get("running"),
            inflight=inflight,
            backpressure=tick.bp,
            successes=tick.ok,
            input_bound=input_bound,
            kv=gauges.get("kv"),
            hits=gauges.get("hits"),
            tok_s=tok_s if tok_s or tick.tokens_observable else None,
            preempts=gauges.get("preempts"),
            latency_s=limiter.latency_s,
            oldest_s=limiter.oldest_s,
            tick_s=dt,
            rate_limited=tick.rate_limited,
            engine_tokens=gauges.get("engine_tokens"),
        )
        decided = max(1, int(self._controller.decide(obs, limit))) if deciding else limit
        record = {
            "t": round(now - self._started, 1),
            "limit": limit,
            "inflight": inflight,
            "waiting": obs.waiting,
            "running": obs.running,
            "bp": tick.bp,
            "ok": tick.ok,
            "input_bound": input_bound,
            "tok_s": None if obs.tok_s is None else round(obs.tok_s, 1),
            "kv": obs.kv,
            "hits": obs.hits,
            "preempts": obs.preempts,
            "reason": str(self._controller.last_reason) if deciding else "end",
            "latency_s": None if obs.latency_s is None else round(obs.latency_s, 3),
            "bound_by": verdict,
            "source_s": round(source_s, 3),
            "prep_s": round(tick.prep_s, 3),
            "prep_n": tick.prep_n,
            "prep_workers": limiter.prep_workers,
            "loop_lag_s": round(consumer_s, 3),
            "rate_limited": tick.rate_limited,
            "pace_s": round(tick.pace_s, 3),
            "pace_rpm": None if limiter.pace_rpm is None else round(limiter.pace_rpm, 1),
            "scrape_s": round(scrape_s, 3),
            "cpu_s": round(cpu_s, 3),
            "dialect": getattr(limiter.signals, "dialect", None),
        }
        self._say_stall(tick, inflight, dt, obs.oldest_s)
        limiter.publish(decided, record)

    def _say_stall(self, tick: Tick, inflight: int, dt: float, oldest_s: Optional[float]) -> None:
        waiting = self._limiter.parked_threads
        if tick.ok or not (inflight or waiting or tick.bp or tick.rate_limited):
            self._silent_s, self._say_at_s = 0.0, STALL_S
            return
        self._silent_s += dt
        if self._silent_s >= self._say_at_s:
            refused = tick.bp + tick.rate_limited
            log.warning(
                "no answer for %.0f s: %d requests in flight, the oldest for %.0f s%s%s",
                self._silent_s,
                inflight,
                oldest_s or 0.0,
                f", {waiting} waiting to be tried again" if waiting else "",
                f", {refused} refused in this tick" if refused else "",
            )
            self._say_at_s *= 2

