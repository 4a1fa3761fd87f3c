"""Progress in plain lines: completions only, and what an earlier run did counted apart."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from saturate import Stats
from saturate.report import progress
from saturate.report.progress import Progress

TICK: dict[str, Any] = {"limit": 32, "inflight": 30, "bound_by": None}


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 50.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="saturate")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_line_every_thirty_seconds_however_often_a_tick_comes(clock, lines):
    say = Progress(Stats())
    for _ in range(60):
        clock.now += 2.0
        say(TICK)
    assert len(lines()) == 4


def test_nothing_is_said_of_a_run_that_is_over_sooner(clock, lines):
    say = Progress(Stats())
    clock.now += 29.9
    say(TICK)
    assert lines() == []


def test_a_line_tells_now_from_before_and_the_rate_since_the_last(clock, lines):
    stats = Stats(rows_done_prior=1000, rows_processed=290, rows_failed=10)
    say = Progress(stats)
    clock.now += 30
    say(TICK)
    stats.rows_processed += 60
    clock.now += 30
    say({**TICK, "bound_by": "source"})
    assert lines() == [
        "300 done now (10 failed), 1000 before; 10.0 rows/s, window 32, in flight 30",
        "360 done now (10 failed), 1000 before; 2.0 rows/s, window 32, in flight 30, bound by source",
    ]


def test_a_run_that_stands_still_says_zero(clock, lines):
    say = Progress(Stats(rows_processed=5))
    for _ in range(3):
        clock.now += 30
        say(TICK)
    assert [line.split("; ")[1].split(",")[0] for line in lines()] == ["0.2 rows/s", "0.0 rows/s", "0.0 rows/s"]
