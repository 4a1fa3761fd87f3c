"""AdaptiveLimiter: slots whose number follows what the endpoint can sustain.

The limiter counts what happens to requests, and a controller thread (monitor.py) turns the counts into the next
window every tick. Invariant: whatever a `with slot():` body does, its slot comes back exactly once.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Callable, Optional

from saturate.flow.controller import Auto
from saturate.flow.monitor import TICK_S, Controller, Monitor, Signals, Tick
from saturate.flow.stopwatch import Stopwatch
from saturate.flow.window import Window
from saturate.http.errors import FatalTransportError

LATENCIES_KEPT = 128
DEFAULT_INITIAL = 16


def check_window(window: Any) -> Controller:
    """`window` as a controller, `Auto()` for None. TypeError with a sentence for a number or anything else."""
    if window is None:
        return Auto()
    if isinstance(window, (int, float)):
        raise TypeError(f"window must be a controller: Fixed({window}) for a fixed window, or Auto(), or leave it out")
    if isinstance(window, type) or not callable(getattr(window, "decide", None)):
        raise TypeError(f"window must be Auto(...), Fixed(n) or an object with decide(obs, limit), got {window!r}")
    return window  # type: ignore[no-any-return]


class AdaptiveLimiter:
    """Slots for requests that you send yourself; the window adapts while the limiter is open.

        with AdaptiveLimiter(window=Auto()) as limiter:
            with limiter.slot():
                result = my_send(payload)
            limiter.observe(ok=True, tokens=n)

    window: `Auto()` (default), `Fixed(n)`, or any object with `decide(obs, limit)`. signals: an object whose
    `read()` returns gauges as a dict, or None. on_tick: called with each tick's record (a dict, the telemetry
    keys) from the controller thread.

    `slot()` and `observe()` may be called from any thread. Once the controller has died, waiting and new
    admissions raise FatalTransportError, and leaving the `with` block raises what killed it.
    """

    def __init__(
        self,
        window: Optional[Controller] = None,
        signals: Optional[Signals] = None,
        on_tick: Optional[Callable[[dict[str, Any]], None]] = None,
        *,
        max_bytes_in_flight: Optional[int] = None,
        tick_s: float = TICK_S,
    ):
        controller = check_window(window)
        self.window = Window(int(getattr(controller, "initial", DEFAULT_INITIAL)), max_bytes_in_flight)
        self.ticks: list[dict[str, Any]] = []
        self.signals = signals
        self.prep_workers = 0
        self.pace_rpm: Optional[float] = None
        self.source = Stopwatch()
        self.consumer = Stopwatch()
        self._lock = threading.Lock()
        # slot number -> (when it was taken, bytes of its request)
        self._held: dict[int, tuple[float, int]] = {}
        self._serial = 0
        self._tick = Tick()
        self._tokens_seen = False
        self._latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._parked = 0
        self._resized: list[Callable[[int], None]] = []
        self._on_tick = on_tick
        self._monitor = Monitor(self, controller, tick_s)

    # -- what a user calls

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Blocks until a request may go on the wire; the slot is given back when the block ends."""
        serial = self.admit()
        try:
            yield
        finally:
            self.leave(serial)

    def observe(
        self, ok: bool, tokens: float = 0, rate_limited: bool = False, latency_s: Optional[float] = None
    ) -> None:
        """What became of one request.

        ok: it was answered. tokens: work that it delivered (prompt and completion tokens). rate_limited: it was
        refused under a published quota, which is no sign of overload. latency_s: how long the answer took.
        A refusal (not ok) keeps one slot closed until the next tick.
        """
        with self._lock:
            tick = self._tick
            if ok:
                tick.ok += 1
                if tokens:
                    tick.tokens += tokens
                    self._tokens_seen = True
                if latency_s is not None:
                    self._latencies.append(latency_s)
                return
            if rate_limited:
                tick.rate_limited += 1
            else:
                tick.bp += 1
        self.window.refuse()

    def note_source_wait(self, seconds: float) -> None:
        """Seconds that the row source made its readers wait."""
        self.source.add(seconds)

    def note_prep(self, seconds: float) -> None:
        """Seconds that one `to_request` call took."""
        with self._lock:
            self._tick.prep_s += seconds
            self._tick.prep_n += 1

    def note_pace(self, seconds: float, rpm: Optional[float]) -> None:
        """Seconds that one request waited for its turn under a quota, and the requests a minute that it allows."""
        self.pace_rpm = rpm
        with self._lock:
            self._tick.pace_s += seconds

    @property
    def latency_s(self) -> Optional[float]:
        """Median seconds of the last 128 successful attempts; None before the first."""
        with self._lock:
            return statistics.median(self._latencies) if self._latencies else None

    @property
    def longest_latency(self) -> tuple[Optional[float], int]:
        """(longest of the last successful attempts in seconds, how many those are); (None, 0) before the first."""
        with self._lock:
            return max(self._latencies, default=None), len(self._latencies)

    @property
    def oldest_s(self) -> Optional[float]:
        """Seconds for which the oldest request in flight has held its slot; None when none is."""
        with self._lock:
            # A dict keeps insertion order, so the first is the oldest.
            first = next(iter(self._held.values()), None)
        return None if first is None else time.monotonic() - first[0]

    # -- what the client and the pool call

    def admit(self, retry: bool = False, size: int = 0) -> int:
        """Takes a slot (retries first) for a request of `size` bytes; returns the number to give back with `leave`."""
        started = time.monotonic()
        if self.window.acquire(retry, size):
            now = time.monotonic()
            with self._lock:
                self._tick.admission_s += now - started
            started = now
        with self._lock:
            self._serial = serial = self._serial + 1
            self._held[serial] = (started, size)
        return serial

    def leave(self, serial: int) -> None:
        """Gives the slot back; a second call for the same slot does nothing."""
        with self._lock:
            held = self._held.pop(serial, None)
        if held is not None:
            self.window.release(held[1])

    @contextmanager
    def parked(self) -> Iterator[None]:
        """A request thread sleeps through a backoff: it holds no slot, and the pool may replace it meanwhile."""
        with self._lock:
            self._parked += 1
        try:
            yield
        finally:
            with self._lock:
                self._parked -= 1

    @property
    def parked_threads(self) -> int:
        return self._parked

    def subscribe(self, resized: Callable[[int], None]) -> None:
        """`resized(limit)` is called from the controller thread after every tick."""
        with self._lock:
            self._resized.append(resized)

    def unsubscribe(self, resized: Callable[[int], None]) -> None:
        with self._lock:
            if resized in self._resized:
                self._resized.remove(resized)

    # -- what the controller thread calls

    def take_tick(self) -> Tick:
        """This tick's counts, and a fresh count begun."""
        with self._lock:
            tick, self._tick = self._tick, Tick()
            tick.tokens_observable = self._tokens_seen and bool(self._held)
        return tick

    def publish(self, limit: int, record: dict[str, Any]) -> None:
        """Puts a decision in force and tells whoever follows it."""
        self.window.resize(limit)
        self.ticks.append(record)
        with self._lock:
            followers = list(self._resized)
        for resized in followers:
            resized(limit)
        if self._on_tick is not None:
            self._on_tick(record)

    # -- life

    def __enter__(self) -> AdaptiveLimiter:
        self._monitor.start()
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], exc: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._monitor.stop()
        died = self._monitor.died
        if died is not None and exc is None:
            raise FatalTransportError(f"controller loop died: {type(died).__name__}: {died}") from died
