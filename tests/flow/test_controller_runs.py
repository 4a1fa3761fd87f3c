"""The window controller on simulated servers: what it delivers, where it rests, how it follows.

The servers are those of benchmarks/window, in virtual time; the whole grid is that benchmark's business.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from saturate.flow.controller import Auto

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "benchmarks", "window"))
import plant

BOTH = pytest.mark.parametrize("gauges", ["full", "none"])


def server(**changes: Any) -> plant.Server:
    """Forty seats, 4 s a row alone: 40 is the smallest good window."""
    fields: dict[str, Any] = {
        "name": "server", "curve": plant.Saturating(50.0, 160.0), "length": plant.Lognormal(200.0, 0.4),
        "seats": 40, "gauges": "none", "seconds": 400.0}
    return plant.Server(**{**fields, **changes})


class Watched:
    """A fixed window that the plant asks, so that its run keeps a trace."""

    last_reason = "hold"

    def __init__(self, n: int) -> None:
        self.initial = n

    def decide(self, obs: Any, limit: int) -> int:
        return self.initial


def delivered(s: plant.Server, run: plant.Run, best: int) -> float:
    return run.value / plant.simulate(s, plant.Hold(best)).value


def window(run: plant.Run, since: float, until: float = float("inf")) -> float:
    """The mean window between two moments."""
    held = [n for t, n, _, _ in run.trace if since <= t < until]
    return sum(held) / len(held)


def resting(run: plant.Run, since: float) -> int:
    """The widest window that it rested at. A far probe looks for the end of a plateau, and is no rest."""
    return max(n for t, n, _, reason in run.trace if t > since and reason == "hold:plateau")


def rate(run: plant.Run, since: float, until: float) -> float:
    got = [r for t, _, r, _ in run.trace if since <= t < until]
    return sum(got) / len(got)


@BOTH
def test_it_delivers_what_the_best_fixed_window_does(gauges: str) -> None:
    s = server(gauges=gauges)
    assert delivered(s, plant.simulate(s, Auto()), 48) >= 0.95


@BOTH
def test_it_settles_within_eight_service_times(gauges: str) -> None:
    s = server(gauges=gauges)
    best = plant.simulate(s, plant.Hold(48)).tokens / s.seconds
    assert rate(plant.simulate(s, Auto()), 40, 70) >= 0.93 * best


@pytest.mark.parametrize("gauges", ["full", "none"])
@pytest.mark.parametrize("start", [1, 2, 5, 33, 120, 400, 1024])
def test_it_is_never_stuck_whatever_window_it_starts_from(start: int, gauges: str) -> None:
    s = server(gauges=gauges, seconds=700.0)
    best = plant.simulate(s, plant.Hold(48)).tokens / s.seconds
    assert rate(plant.simulate(s, Auto(initial=start)), 300, 700) >= 0.85 * best


@BOTH
def test_a_start_that_is_too_large_comes_down_to_twice_the_smallest_good_window(gauges: str) -> None:
    run = plant.simulate(server(gauges=gauges, seconds=600.0), Auto(initial=400))
    assert window(run, 300) <= 2 * 48


@BOTH
@pytest.mark.parametrize("start", [150, 400])
def test_a_start_that_is_too_large_comes_down_within_eight_service_times(start: int, gauges: str) -> None:
    run = plant.simulate(server(gauges=gauges, seconds=200.0), Auto(initial=start))
    assert min(n for t, n, _, _ in run.trace if t <= 48) <= 2 * 48
    assert resting(run, 48) <= 2 * 48


def test_a_start_that_is_large_and_right_is_kept() -> None:
    s = server(seats=None, curve=plant.Saturating(50.0, 2000.0), seconds=300.0)
    run = plant.simulate(s, Auto(initial=400))
    assert min(n for _, n, _, _ in run.trace) >= 200
    assert delivered(s, run, 1024) >= 0.8


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_start_that_is_too_large_stays_down_without_gauges(seed: int) -> None:
    run = plant.simulate(server(seconds=900.0, seed=seed), Auto(initial=400))
    assert window(run, 300) <= 2 * 48
    assert resting(run, 300) <= 2 * 48


@BOTH
def test_a_start_past_a_knee_looks_down_first(gauges: str) -> None:
    s = server(curve=plant.Falling(67.0, 12.0, 12, 0.25), seats=None, gauges=gauges, seconds=600.0)
    assert delivered(s, plant.simulate(s, Auto()), 12) >= 0.8


def test_the_floor_of_two_yields_to_a_server_that_takes_one() -> None:
    s = server(curve=plant.Saturating(33.0, 2.0), seats=None, cap=1, seconds=1200.0)
    assert delivered(s, plant.simulate(s, Auto()), 1) >= 0.85
    floors = {n for _, n, _, _ in plant.simulate(s, Auto(min_limit=3)).trace}
    assert min(floors) == 3


@BOTH
def test_a_false_plateau_is_left(gauges: str) -> None:
    curve = plant.Points(((1, 100), (16, 1300), (32, 1400), (64, 3000), (1024, 3100)))
    s = server(curve=curve, seats=None, gauges=gauges)
    assert window(plant.simulate(s, Auto()), 200) >= 60


@BOTH
def test_it_stops_within_three_times_a_real_knee(gauges: str) -> None:
    curve = plant.Points(((1, 100), (32, 2400), (1024, 2400)))
    assert window(plant.simulate(server(curve=curve, seats=None, gauges=gauges), Auto()), 200) <= 3 * 32


@BOTH
def test_it_backs_off_a_server_that_delivers_less_past_its_knee(gauges: str) -> None:
    s = server(curve=plant.Falling(60.0, 48.0, 48, 0.2), seats=None, gauges=gauges, seconds=600.0)
    assert delivered(s, plant.simulate(s, Auto()), 48) >= 0.85


def test_a_quarter_of_the_seats_is_followed_within_eight_service_times_of_the_old_window() -> None:
    s = server(seats=128, phases=((0.0, 1.0, 1.0), (300.0, 1.0, 0.25)), seconds=700.0, gauges="full")
    assert window(plant.simulate(s, Auto()), 360) <= 2 * 48


def test_a_quarter_of_the_seats_is_followed_without_gauges_too() -> None:
    # A service time is 5 s. From a window of twice the good one; a wider one must drain first.
    s = server(seats=128, curve=plant.Saturating(50.0, 512.0), phases=((0.0, 1.0, 1.0), (400.0, 1.0, 0.25)),
               seconds=600.0)
    run = plant.simulate(s, Auto())
    assert window(run, 390, 400) >= 96
    assert window(run, 440, 600) <= 2 * 48


@BOTH
def test_four_times_the_seats_are_followed_within_eight_service_times(gauges: str) -> None:
    s = server(seats=128, curve=plant.Saturating(50.0, 512.0), phases=((0.0, 1.0, 0.25), (400.0, 1.0, 1.0)),
               seconds=600.0, gauges=gauges)
    best = rate(plant.simulate(s, Watched(128)), 440, 600)
    assert rate(plant.simulate(s, Auto()), 440, 600) >= 0.93 * best


@BOTH
def test_a_server_that_slows_and_recovers_loses_little(gauges: str) -> None:
    s = server(phases=((0.0, 1.0, 1.0), (150.0, 0.25, 1.0), (300.0, 1.0, 1.0)), seconds=500.0, gauges=gauges)
    assert delivered(s, plant.simulate(s, Auto()), 48) >= 0.9


def test_rows_that_become_shorter_do_not_widen_a_window_whose_queue_is_seen() -> None:
    # Every window delivers more than the one before it; a look back tells that the narrower one does too.
    curve = plant.Points(((1, 154), (34, 4200), (82, 4530), (332, 13500), (1024, 13900)))
    s = server(seats=None, curve=curve, kv=5900.0, gauges="full", length=plant.Sorted(320.0, 80.0, 2000), seconds=300.0)
    run = plant.simulate(s, Auto())
    assert run.mean_inflight <= 3 * 32
    assert delivered(s, run, 32) >= 0.93


def test_a_cap_that_refuses_is_found_with_few_refusals() -> None:
    s = server(seats=None, cap=40, seconds=600.0)
    run = plant.simulate(s, Auto())
    assert run.refused <= 0.02 * (run.rows + run.refused)
    assert 36 <= window(run, 200) <= 44


def test_a_cap_that_is_lifted_is_noticed() -> None:
    s = server(seats=None, cap=40, phases=((0.0, 1.0, 1.0), (200.0, 1.0, 4.0)), seconds=900.0)
    assert window(plant.simulate(s, Auto()), 800) >= 80


def test_a_server_that_always_fails_a_few_rows_keeps_its_window() -> None:
    s = server(flaky=0.02, seconds=600.0)
    assert delivered(s, plant.simulate(s, Auto()), 48) >= 0.85


def test_a_slow_source_does_not_widen_the_window_for_nothing() -> None:
    s = server(seats=None, source=4.0)
    assert window(plant.simulate(s, Auto()), 200) <= 64


def test_rows_of_one_length_which_come_back_together_do_not_end_the_climb() -> None:
    s = server(seats=160, curve=plant.Saturating(50.0, 48.0), length=plant.Constant(200.0), seconds=600.0)
    assert delivered(s, plant.simulate(s, Auto()), 192) >= 0.96


def test_no_usage_reported_is_no_hindrance() -> None:
    s = server(usage=False)
    assert delivered(s, plant.simulate(s, Auto()), 48) >= 0.95
