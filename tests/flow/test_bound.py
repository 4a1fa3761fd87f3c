"""Which stage holds the run back: a verdict for each tick, from its times alone."""

from __future__ import annotations

from typing import Any

import pytest

from saturate.flow.bound import TickTimes, bound_by

QUIET: dict[str, Any] = {
    "tick_s": 2.0,
    "inflight": 4,
    "limit": 16,
    "source_s": 0.0,
    "prep_s": 0.0,
    "prep_threads": 1,
    "consumer_s": 0.0,
    "admission_s": 0.0,
}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        # nothing stands out
        ({}, (None, False)),
        ({"source_s": 0.49}, (None, False)),
        # less than half the window in use, and a quarter of the tick spent on input
        ({"source_s": 0.5}, ("source", True)),
        ({"prep_s": 0.5}, ("prep", True)),
        ({"source_s": 1.0, "prep_s": 0.9}, ("source", True)),
        ({"source_s": 0.9, "prep_s": 1.0}, ("prep", True)),
        ({"source_s": 1.0, "prep_s": 1.0}, ("source", True)),
        ({"inflight": 7, "source_s": 2.0}, ("source", True)),
        # half the window is in use: the input is no excuse
        ({"inflight": 8, "source_s": 2.0}, (None, False)),
        ({"inflight": 16, "source_s": 2.0}, ("engine", False)),
        # preparation is shared by the threads that do it
        ({"prep_s": 8.0, "prep_threads": 20}, (None, False)),
        ({"prep_s": 8.0, "prep_threads": 16}, ("prep", True)),
        ({"inflight": 12, "prep_s": 16.0, "prep_threads": 16}, ("prep", False)),
        ({"inflight": 12, "prep_s": 15.0, "prep_threads": 16}, (None, False)),
        ({"prep_s": 1.0, "prep_threads": 0}, ("prep", True)),
        # the consumer
        ({"inflight": 12, "consumer_s": 1.0}, ("loop", False)),
        ({"inflight": 16, "consumer_s": 1.5}, ("loop", False)),
        ({"inflight": 12, "consumer_s": 0.9}, (None, False)),
        ({"source_s": 0.5, "consumer_s": 1.0}, ("source", True)),
        # the engine
        ({"inflight": 16}, ("engine", False)),
        ({"inflight": 20}, ("engine", False)),
        ({"inflight": 10, "admission_s": 0.3, "source_s": 0.1, "prep_s": 0.1}, ("engine", False)),
        ({"inflight": 10, "admission_s": 0.2, "source_s": 0.1, "prep_s": 0.1}, (None, False)),
    ],
)
def test_the_first_rule_that_holds_names_the_stage(change, verdict):
    assert bound_by(TickTimes(**{**QUIET, **change})) == verdict


def test_only_a_starved_window_is_input_bound():
    for inflight in range(17):
        for source_s in (0.0, 0.3, 0.6, 2.0):
            for prep_s in (0.0, 0.6, 2.0):
                times = TickTimes(**{**QUIET, "inflight": inflight, "source_s": source_s, "prep_s": prep_s})
                verdict, input_bound = bound_by(times)
                assert verdict in ("source", "prep", "loop", "engine", None)
                assert not input_bound or (verdict in ("source", "prep") and inflight < 8)
