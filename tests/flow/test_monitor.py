"""The controller thread: one decision a tick, a line when the run is silent, and an end that is never waited for."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from saturate import AdaptiveLimiter, Fixed
from saturate.flow import monitor
from saturate.flow.monitor import STALL_S, Controller, Monitor, Tick
from tests.conftest import product_threads, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 1000.0
        monkeypatch.setattr(monitor.time, "monotonic", lambda: self.now)


class Ticks:
    """A monitor whose ticks a test runs by hand, two seconds apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 4, signals: Any = None):
        self.clock = Clock(monkeypatch)
        self.limiter = AdaptiveLimiter(Fixed(limit), signals)
        self.monitor = Monitor(self.limiter, Fixed(limit), 2.0)

    def pass_by(self, seconds: float = 2.0) -> dict[str, Any]:
        self.clock.now += seconds
        self.monitor._run_tick(deciding=True)
        return self.limiter.ticks[-1]


@pytest.fixture
def ticks(monkeypatch):
    return Ticks(monkeypatch)


def stall_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("no answer for")]


def test_silence_with_requests_in_flight_is_said_after_30_seconds_and_at_every_doubling(ticks, caplog):
    for _ in range(3):
        ticks.limiter.admit()
    said_at = []
    for turn in range(1, 150):
        ticks.pass_by()
        if len(stall_lines(caplog)) > len(said_at):
            said_at.append(2 * turn)
    assert said_at == [30, 60, 120, 240]
    assert stall_lines(caplog)[0] == "no answer for 30 s: 3 requests in flight, the oldest for 30 s"
    assert STALL_S == 30


def test_an_answer_ends_the_silence(ticks, caplog):
    ticks.limiter.admit()
    for _ in range(10):
        for _ in range(14):
            ticks.pass_by()
        ticks.limiter.observe(ok=True)
        ticks.pass_by()
    assert stall_lines(caplog) == []
    for _ in range(15):
        ticks.pass_by()
    assert len(stall_lines(caplog)) == 1
    ticks.limiter.observe(ok=True)
    ticks.pass_by()
    for _ in range(15):
        ticks.pass_by()
    assert len(stall_lines(caplog)) == 2, "each silence is said from its own beginning"


def test_a_run_with_nothing_in_flight_is_idle_and_not_stalled(ticks, caplog):
    for _ in range(100):
        ticks.pass_by()
    assert stall_lines(caplog) == []


@pytest.mark.parametrize("rate_limited", [False, True])
def test_a_run_that_is_only_refused_is_stalled_too(ticks, caplog, rate_limited):
    for _ in range(15):
        ticks.limiter.observe(ok=False, rate_limited=rate_limited)
        ticks.limiter.observe(ok=False, rate_limited=rate_limited)
        ticks.pass_by()
    assert stall_lines(caplog) == [
        "no answer for 30 s: 0 requests in flight, the oldest for 0 s, 2 refused in this tick"
    ]


def test_a_run_that_waits_through_retry_afters_is_stalled_too(ticks, caplog):
    """Every request was refused once and now sleeps: nothing is in flight, nothing is refused, nothing happens."""
    ticks.limiter.observe(ok=False, rate_limited=True)
    ticks.pass_by()
    with ticks.limiter.parked():
        for _ in range(16):
            ticks.pass_by()
    assert len(stall_lines(caplog)) == 1


def test_a_record_says_how_long_after_the_start_it_was_and_how_fast_the_run_is(ticks):
    ticks.limiter.admit()
    ticks.limiter.observe(ok=True, tokens=123, latency_s=0.12345)
    record = ticks.pass_by()
    assert (record["t"], record["tok_s"], record["latency_s"]) == (2.0, 61.5, 0.123)
    assert ticks.pass_by(2.5)["t"] == 4.5


def test_time_the_source_takes_shows_in_every_tick_that_it_lasts(ticks):
    source = ticks.limiter.source
    source.start()
    assert [ticks.pass_by()["source_s"] for _ in range(3)] == [2.0, 2.0, 2.0]
    assert ticks.limiter.ticks[-1]["bound_by"] == "source" and ticks.limiter.ticks[-1]["input_bound"] is True
    source.stop()
    assert [ticks.pass_by()["source_s"] for _ in range(2)] == [0.0, 0.0]


def test_time_results_wait_for_the_consumer_is_the_loops(ticks):
    ticks.limiter.consumer.start()
    record = ticks.pass_by()
    assert (record["bound_by"], record["loop_lag_s"], record["input_bound"]) == ("loop", 2.0, False)


def test_a_full_window_is_the_engines(ticks):
    for _ in range(4):
        ticks.limiter.admit()
    assert ticks.pass_by()["bound_by"] == "engine"


def test_the_time_a_scrape_takes_is_recorded_and_no_gauges_are_none(monkeypatch):
    class Slow:
        dialect = None

        def read(self) -> None:
            ticks.clock.now += 1.5

    ticks = Ticks(monkeypatch, signals=Slow())
    record = ticks.pass_by()
    assert (record["scrape_s"], record["t"], record["waiting"], record["dialect"]) == (1.5, 3.5, None, None)


def test_ending_does_not_wait_for_a_scrape(monkeypatch):
    """A server that is dead makes a scrape last five seconds; leaving the block must not."""
    hold, asked = threading.Event(), threading.Event()

    class Stuck:
        def read(self) -> None:
            asked.set()
            hold.wait(30)

    limiter = AdaptiveLimiter(Fixed(2), Stuck(), tick_s=0.01)
    with limiter:
        assert asked.wait(10)
    assert product_threads() == ["saturate-controller"], "left behind in its scrape"
    hold.set()
    assert wait_until(lambda: not product_threads())


def test_a_monitor_starts_once():
    limiter = AdaptiveLimiter(Fixed(2), tick_s=600)
    runs = Monitor(limiter, Fixed(2), 600)
    runs.start()
    with pytest.raises(RuntimeError, match="already open"):
        runs.start()
    runs.stop()


def test_a_monitor_that_never_started_can_be_stopped():
    monitor = Monitor(AdaptiveLimiter(Fixed(2)), Fixed(2), 2.0)
    monitor.stop()
    assert monitor.died is None


def test_what_decides_is_a_controller_by_its_shape():
    assert isinstance(Fixed(2), Controller)
    assert Tick() == Tick(ok=0, bp=0, rate_limited=0, tokens=0)


def test_a_death_is_logged_with_its_reason(caplog):
    class Broken:
        last_reason = ""

        def decide(self, obs: Any, limit: int) -> int:
            raise LookupError("lost")

    limiter = AdaptiveLimiter(Broken(), tick_s=0.01)
    with caplog.at_level(logging.ERROR, logger="saturate"), pytest.raises(RuntimeError, match="LookupError: lost"):
        with limiter:
            assert wait_until(lambda: limiter.window._failure)
    assert [r.getMessage() for r in caplog.records] == ["controller loop died: LookupError: lost"]
