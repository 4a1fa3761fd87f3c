"""Advice at the end of a run: what held it back and one change that would help, from its ticks alone."""

from __future__ import annotations

from typing import Any

import pytest

from saturate.report.advisor import advise

TICK: dict[str, Any] = {
    "t": 2.0,
    "ok": 10,
    "bp": 0,
    "waiting": None,
    "running": None,
    "bound_by": None,
    "source_s": 0.0,
    "prep_s": 0.0,
    "prep_n": 0,
    "loop_lag_s": 0.0,
}


def ticks(count: int, **change: Any) -> list[dict[str, Any]]:
    """`count` ticks alike; the time of the last one is the length of the run."""
    return [{**TICK, "t": 2.0 * (i + 1), **change} for i in range(count)]


def queued(count: int, running: float = 32.0, waiting: float = 5.0) -> list[dict[str, Any]]:
    return ticks(count, running=running, waiting=waiting)


def advice(record: list[dict[str, Any]], final_limit: int = 64, dialect: Any = "vllm", workers: int = 0) -> list[str]:
    return advise(record, final_limit, dialect, workers)


@pytest.mark.parametrize("record", [[], ticks(1), ticks(50), ticks(10, bound_by="engine")])
def test_nothing_is_said_when_nothing_stands_out(record):
    assert advice(record) == []


def test_a_pinned_engine_with_a_standing_queue_is_told_to_take_twice_as_many():
    [hint] = advice(queued(6) + queued(2, running=31.0) + queued(2, waiting=0.0))
    assert hint.startswith("SERVER-BOUND: ") and "ran 32 requests" in hint
    assert "80% of the run" in hint and hint.endswith("--max-num-seqs 64")


@pytest.mark.parametrize(
    ("dialect", "flag"),
    [
        ("vllm", "--max-num-seqs 64"),
        ("sglang", "--max-running-requests 64"),
        ("llamacpp", "-np 64 (the context of each slot shrinks unless -c is raised too)"),
        ("trtllm", "--max_batch_size 64"),
        ("tei", "--max-concurrent-requests 64 (above it TEI answers 429 instead of queueing)"),
        (None, "its limit on concurrent sequences, 64"),
        ("new-engine", "its limit on concurrent sequences, 64"),
    ],
)
def test_each_engine_is_told_in_its_own_words(dialect, flag):
    [hint] = advice(queued(8), dialect=dialect)
    assert hint.endswith(flag)


@pytest.mark.parametrize(
    ("record", "final_limit", "why"),
    [
        (queued(4), 64, "too few ticks to tell"),
        (queued(5) + ticks(100), 64, None),  # ticks without gauges do not count against it
        (queued(4) + queued(5, waiting=0.0), 64, "less than half of them with a queue"),
        (queued(5) + queued(5, waiting=0.0), 64, None),
        (queued(6) + queued(4, running=20.0), 64, "not pinned: six of ten queued ticks"),
        (queued(7) + queued(3, running=20.0), 64, None),
        (queued(8), 32, "the window is no wider than what runs"),
        (queued(8), 33, None),
        (queued(8, running=0.0), 64, "nothing runs: not a ceiling"),
    ],
)
def test_the_ceiling_is_named_only_on_good_evidence(record, final_limit, why):
    assert bool(advice(record, final_limit)) is (why is None), why


def test_slow_preparation_is_told_with_its_time_a_row():
    record = ticks(7) + ticks(3, bound_by="prep", prep_s=1.5, prep_n=30)
    [hint] = advice(record)
    assert hint.startswith("PREP-BOUND: to_request takes 50 ms a row") and hint.endswith("try prepare_workers=4")


def test_preparation_that_is_already_parallel_is_told_of_processes():
    [hint] = advice(ticks(5, bound_by="prep", prep_s=1.0, prep_n=10), workers=4)
    assert "prepare_workers=8" in hint and "process pool" in hint


def test_a_slow_source_is_told_with_its_time_a_row():
    record = ticks(4) + ticks(4, bound_by="source", source_s=1.6, ok=6, bp=4)
    [hint] = advice(record)
    assert hint.startswith("SOURCE-BOUND: the rows arrive at 80 ms each") and "read ahead" in hint


def test_a_slow_consumer_is_told_with_its_share_of_the_run():
    [hint] = advice(ticks(5) + ticks(5, bound_by="loop", loop_lag_s=1.0, t=20.0))
    assert hint.startswith("LOOP-BOUND: ") and "for 25% of the run" in hint


def test_a_share_is_never_above_the_whole():
    [hint] = advice(ticks(5, bound_by="loop", loop_lag_s=9.0))
    assert "100% of the run" in hint


@pytest.mark.parametrize(("verdict", "name"), [("prep", "PREP"), ("source", "SOURCE"), ("loop", "LOOP")])
def test_the_client_is_named_from_three_ticks_and_three_tenths_of_them_on(verdict, name):
    def names(total: int, bound: int) -> list[str]:
        return [hint.split("-BOUND")[0] for hint in advice(ticks(total - bound) + ticks(bound, bound_by=verdict))]

    assert names(2, 2) == []
    assert names(3, 1) == [name]
    assert names(10, 2) == []
    assert names(10, 3) == [name]


def test_several_hints_come_most_telling_first():
    mixed = (
        queued(8)
        + ticks(8, bound_by="prep", prep_s=1, prep_n=1)
        + ticks(8, bound_by="source", source_s=1)
        + ticks(2, bound_by="loop", loop_lag_s=1)
    )
    assert [hint.split("-BOUND")[0] for hint in advice(mixed)] == ["SERVER", "PREP", "SOURCE"]


def test_a_run_in_which_nothing_was_answered_divides_by_nothing():
    record = ticks(5, bound_by="source", ok=0, source_s=2.0) + ticks(5, bound_by="prep", prep_s=2.0, t=0.0)
    assert len(advice(record)) == 2
