"""The engine model, in virtual time: what a batching server delivers, to the step."""

from __future__ import annotations

import pytest

from saturate.simulate.engine import Engine, Job


def closed_loop(engine: Engine, window: int, output: int, until: float, prompt: int = 10) -> list[tuple[float, Job]]:
    """Keep `window` requests in the engine; when each was finished."""
    finished: list[tuple[float, Job]] = []
    for _ in range(window):
        engine.offer(Job(prompt, output), 0.0)
    while engine.step_ends is not None and engine.step_ends < until:
        now = engine.step_ends
        for job in engine.advance(now):
            finished.append((now, job))
            engine.offer(Job(prompt, output), now)
    return finished


def test_64_sequences_of_100_tokens_at_10_ms_plus_a_tenth_per_sequence_give_39_requests_a_second() -> None:
    finished = closed_loop(Engine(64, 0.010, 0.0001), window=128, output=100, until=200.0)
    assert len(finished) / 200.0 == pytest.approx(64 / (100 * 0.0164), rel=0.01)


def test_a_window_above_the_engine_s_gains_nothing() -> None:
    at_64 = len(closed_loop(Engine(64), window=65, output=100, until=100.0))
    at_512 = len(closed_loop(Engine(64), window=512, output=100, until=100.0))
    assert at_512 == pytest.approx(at_64, rel=0.02)


def test_an_engine_advanced_once_an_hour_has_done_the_same_as_one_advanced_every_step() -> None:
    eager, lazy = Engine(4), Engine(4)
    jobs = [(Job(7, 3 + n % 5), Job(7, 3 + n % 5)) for n in range(40)]
    for one, other in jobs:
        eager.offer(one, 0.0)
        lazy.offer(other, 0.0)
    by_step = []
    while eager.step_ends is not None:
        by_step += eager.advance(eager.step_ends)
    at_once = lazy.advance(3600.0)
    order = {job: n for n, pair in enumerate(jobs) for job in pair}
    assert [order[job] for job in by_step] == [order[job] for job in at_once] != []
    assert (eager.steps, eager.generated_tokens) == (lazy.steps, lazy.generated_tokens)


def test_a_request_never_joins_a_step_that_began_before_it_arrived() -> None:
    engine = Engine(max_num_seqs=2, step_s=1.0, per_seq_s=0.0)
    first, second = Job(1, 5), Job(1, 1)
    engine.offer(first, 0.0)
    engine.offer(second, 2.5)  # steps begin at 0, 1, 2, 3: nobody called advance yet
    assert engine.advance(3.9) == []
    assert engine.advance(4.0) == [second]
    assert engine.advance(5.0) == [first]


def test_requests_are_served_first_come_first_served() -> None:
    engine = Engine(max_num_seqs=1, step_s=1.0, per_seq_s=0.0)
    jobs = [Job(1, 1) for _ in range(5)]
    for job in jobs:
        engine.offer(job, 0.0)
    assert engine.advance(10.0) == jobs


def test_an_idle_engine_has_nothing_to_wait_for_and_starts_when_work_comes() -> None:
    engine = Engine(step_s=1.0, per_seq_s=0.0)
    assert engine.step_ends is None
    engine.offer(Job(1, 2), 100.0)
    assert engine.step_ends == 101.0
    assert len(engine.advance(102.0)) == 1
    assert engine.step_ends is None


def test_prompt_tokens_make_the_step_that_admits_them_longer() -> None:
    engine = Engine(step_s=1.0, per_seq_s=0.5, prefill_s=0.01)
    engine.offer(Job(200, 2), 0.0)
    assert engine.step_ends == pytest.approx(1.0 + 0.5 + 2.0)
    engine.advance(3.5)
    assert engine.step_ends == pytest.approx(3.5 + 1.5)


def test_kv_overflow_preempts_the_youngest_which_starts_over_and_still_finishes() -> None:
    engine = Engine(max_num_seqs=8, step_s=1.0, per_seq_s=0.0, kv_tokens=50)
    old, young = Job(10, 30), Job(10, 30)
    engine.offer(old, 0.0)
    engine.offer(young, 0.5)
    most = 0
    finished: list[Job] = []
    while engine.step_ends is not None:
        finished += engine.advance(engine.step_ends)
        most = max(most, engine.kv)
    assert finished == [old, young]
    assert engine.preemptions >= 1
    assert most <= 50
    assert engine.kv == 0
    assert engine.generated_tokens > 60  # tokens of the first try were made for nothing


def test_a_request_larger_than_the_kv_runs_alone_instead_of_for_ever() -> None:
    engine = Engine(kv_tokens=10)
    engine.offer(Job(100, 5), 0.0)
    engine.offer(Job(1, 1), 0.0)
    assert len(engine.advance(3600.0)) == 2


def test_a_cancelled_request_gives_its_place_and_its_kv_back() -> None:
    engine = Engine(max_num_seqs=1, step_s=1.0, per_seq_s=0.0, kv_tokens=100)
    running, queued, last = Job(10, 50), Job(10, 50), Job(10, 2)
    for job in (running, queued, last):
        engine.offer(job, 0.0)
    engine.advance(3.0)
    assert engine.made(running) == 3
    assert engine.cancel(queued) and engine.cancel(running)
    assert not engine.cancel(running)
    assert engine.advance(100.0) == [last]
    assert (engine.kv, engine.load) == (0, 0)


def test_half_speed_takes_twice_as_long() -> None:
    engine = Engine(step_s=1.0, per_seq_s=0.0)
    engine.slowdown = 2.0
    engine.offer(Job(1, 3), 0.0)
    assert engine.advance(5.9) == []
    assert len(engine.advance(6.0)) == 1
