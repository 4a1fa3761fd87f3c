"""The receipt: what bound a run, how near its window came to the best one tried, and what the ramp cost."""

from __future__ import annotations

from typing import Any

import pytest

from saturate.report.advisor import advise
from saturate.report.receipt import bound, receipt

TICK: dict[str, Any] = {
    "limit": 64,
    "inflight": 64,
    "ok": 20,
    "tok_s": None,
    "reason": "hold:plateau",
    "bound_by": "engine",
    "running": None,
    "waiting": None,
    "pace_s": 0.0,
    "cpu_s": 0.1,
    "source_s": 0.0,
    "prep_s": 0.0,
    "prep_n": 0,
    "loop_lag_s": 0.0,
}


def run(*stretches: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ticks of two seconds: (how many, what they have that is not usual)."""
    ticks: list[dict[str, Any]] = []
    for count, change in stretches:
        for _ in range(count):
            ticks.append({**TICK, "t": 2.0 * (len(ticks) + 1), **change})
    return ticks


def test_it_says_what_bound_the_run_the_share_of_the_best_window_and_the_cost_of_the_ramp():
    ticks = run((2, {"limit": 16, "ok": 10}), (2, {"limit": 32, "ok": 20}), (10, {"limit": 64, "ok": 40}))
    # two ticks at a quarter and two at half of the final rate: 3 s and 2 s short
    assert receipt(ticks, 64) == "bound by the server: window 64; 100 % of the best window tried; the ramp cost 5 s"


def test_a_window_that_delivers_less_than_the_best_one_tried_is_shown_as_such():
    ticks = run((5, {"limit": 32, "ok": 40}), (5, {"limit": 64, "ok": 30}))
    assert "75 % of the best window tried" in receipt(ticks, 64)


def test_noise_gives_a_range():
    ticks = run((4, {"ok": 38}), (4, {"ok": 42}), (4, {"limit": 128, "ok": 40}))
    assert "98-100 % of the best window tried" in receipt(ticks, 64)


def test_tokens_count_where_there_are_any():
    ticks = run((5, {"limit": 32, "ok": 99, "tok_s": 500.0}), (5, {"limit": 64, "ok": 1, "tok_s": 1000.0}))
    assert "100 % of the best window tried" in receipt(ticks, 64)


def test_a_short_run_has_none():
    assert receipt(run((4, {})), 64) is None
    assert receipt([], 64) is None


def test_the_last_partial_tick_is_no_evidence():
    ticks = run((6, {"ok": 40})) + [{**TICK, "t": 12.1, "reason": "end", "ok": 0}]
    assert "100 %" in receipt(ticks, 64)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"pace_s": 30.0}, "the rate limit"),
        ({"cpu_s": 1.9}, "this client's CPU"),
        ({"bound_by": "source"}, "the source"),
        ({"bound_by": "prep"}, "to_request"),
        ({"bound_by": "loop"}, "the sink or the loop body"),
        ({"reason": "hold:ceiling"}, "the window"),
        ({"reason": "hold"}, "the window"),
        ({"reason": "hold", "inflight": 10}, "the server"),
        ({}, "the server"),
    ],
)
def test_each_stage_has_its_name(change, name):
    assert bound(run((3, {}), (7, change))) == name


def test_a_quota_is_named_with_the_one_thing_that_would_help():
    [hint] = advise(run((10, {"pace_s": 20.0, "pace_rpm": 594.0})), 64, None, 0)
    assert hint.startswith("RATE-BOUND: ") and "about 594 requests a minute" in hint and "100% of the run" in hint


def test_a_full_core_is_told_to_split_the_rows():
    [hint] = advise(run((10, {"cpu_s": 1.95})), 64, None, 0)
    assert hint.startswith("CLIENT-CPU-BOUND: ") and "shard_select" in hint
