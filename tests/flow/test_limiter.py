"""`AdaptiveLimiter`: `with limiter.slot(): ...; limiter.observe(...)` for requests that a user sends."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from saturate import AdaptiveLimiter, Auto, FatalTransportError, Fixed, Obs
from saturate.flow import limiter as limiter_module
from tests.conftest import product_threads, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

# What every reader of a telemetry file may rely on.
FROZEN_KEYS = {
    "t", "limit", "inflight", "waiting", "running", "bp", "ok", "input_bound", "tok_s", "kv", "hits", "preempts",
    "reason", "latency_s", "bound_by", "source_s", "prep_s", "prep_n", "prep_workers", "loop_lag_s",
}  # fmt: skip


def quick(window: Any = None, **options: Any) -> AdaptiveLimiter:
    return AdaptiveLimiter(window if window is not None else Fixed(4), tick_s=0.02, **options)


def slow(window: Any = None, **options: Any) -> AdaptiveLimiter:
    """A limiter whose first tick no test lives to see."""
    return AdaptiveLimiter(window if window is not None else Fixed(4), tick_s=600, **options)


def take_slot(limiter: AdaptiveLimiter, outcome: list[Any]) -> threading.Thread:
    def take() -> None:
        try:
            with limiter.slot():
                outcome.append("slot")
        except FatalTransportError as exc:
            outcome.append(exc)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread


def test_the_loop_of_the_readme():
    with AdaptiveLimiter(window=Auto()) as limiter:
        for _ in range(40):
            with limiter.slot():
                assert limiter.window.inflight == 1
            limiter.observe(ok=True, tokens=7)
        assert limiter.window.inflight == 0
    assert sum(tick["ok"] for tick in limiter.ticks) == 40


def test_at_most_limit_slots_are_out():
    with slow(Fixed(2)) as limiter:
        with limiter.slot(), limiter.slot():
            outcome: list[Any] = []
            thread = take_slot(limiter, outcome)
            time.sleep(0.05)
            assert outcome == [] and limiter.window.inflight == 2
        thread.join(10)
        assert outcome == ["slot"] and limiter.window.inflight == 0


def test_a_slot_comes_back_when_its_body_raises():
    with slow(Fixed(1)) as limiter:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), limiter.slot():
                raise ZeroDivisionError
        assert limiter.window.inflight == 0


def test_a_slot_given_back_twice_counts_once():
    with slow(Fixed(2)) as limiter:
        serial = limiter.admit()
        limiter.leave(serial)
        limiter.leave(serial)
        limiter.leave(12345)
        assert limiter.window.inflight == 0


def test_outcomes_are_counted_in_the_tick_they_belong_to():
    with slow() as limiter:
        limiter.observe(ok=True, tokens=10, latency_s=1.0)
        limiter.observe(ok=True, tokens=2.5)
        limiter.observe(ok=False)
        limiter.observe(ok=False, rate_limited=True)
        tick = limiter.take_tick()
        assert (tick.ok, tick.bp, tick.rate_limited, tick.tokens) == (2, 1, 1, 12.5)
        tick = limiter.take_tick()
        assert (tick.ok, tick.bp, tick.rate_limited, tick.tokens) == (0, 0, 0, 0)


def test_outcomes_may_be_observed_from_many_threads():
    with slow() as limiter:

        def several() -> None:
            for _ in range(1000):
                limiter.observe(ok=True, tokens=1, latency_s=0.1)

        threads = [threading.Thread(target=several) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tick = limiter.take_tick()
        assert (tick.ok, tick.tokens) == (8000, 8000)


@pytest.mark.parametrize("rate_limited", [False, True])
def test_a_refusal_keeps_one_slot_closed_until_the_next_tick(rate_limited):
    with slow(Fixed(2)) as limiter:
        limiter.observe(ok=False, rate_limited=rate_limited)
        outcome: list[Any] = []
        with limiter.slot():
            thread = take_slot(limiter, outcome)
            time.sleep(0.05)
            assert outcome == []
            limiter.window.resize(2)
            thread.join(10)
            assert outcome == ["slot"]


def test_latency_is_the_median_of_the_last_128_successes():
    with slow() as limiter:
        assert limiter.latency_s is None
        limiter.observe(ok=True)
        limiter.observe(ok=False, latency_s=9.0)
        assert limiter.latency_s is None, "only an answer that was timed counts"
        for _ in range(200):
            limiter.observe(ok=True, latency_s=100.0)
        for seconds in (1.0, 2.0, 3.0):
            limiter.observe(ok=True, latency_s=seconds)
        assert limiter.latency_s == 100.0
        for _ in range(limiter_module.LATENCIES_KEPT):
            limiter.observe(ok=True, latency_s=2.0)
        assert limiter.latency_s == 2.0


def test_the_oldest_is_the_one_that_has_held_its_slot_for_longest():
    with slow() as limiter:
        assert limiter.oldest_s is None
        with limiter.slot():
            time.sleep(0.03)
            with limiter.slot():
                assert limiter.oldest_s >= 0.03
        assert limiter.oldest_s is None


def test_waiting_for_a_slot_is_no_part_of_holding_it():
    with slow(Fixed(1)) as limiter:
        serial = limiter.admit()
        ages: list[Any] = []

        def wait() -> None:
            with limiter.slot():
                ages.append(limiter.oldest_s)

        thread = threading.Thread(target=wait)
        thread.start()
        assert wait_until(lambda: limiter.window._fresh)
        time.sleep(0.2)
        limiter.leave(serial)
        thread.join(10)
        assert limiter.take_tick().admission_s >= 0.2 > ages[0]


def test_a_tick_records_what_it_saw_under_the_contracts_keys():
    class Gauges:
        dialect = "vllm"

        def read(self) -> dict[str, Any]:
            return {"waiting": 3.0, "running": 4.0, "kv": 0.5, "hits": None, "preempts": 1.0, "engine_tokens": 9.0}

    seen: list[dict[str, Any]] = []
    with quick(signals=Gauges(), on_tick=seen.append) as limiter:
        limiter.prep_workers = 2
        limiter.note_source_wait(0.25)
        limiter.note_prep(0.5)
        limiter.note_prep(0.25)
        limiter.observe(ok=True, tokens=100, latency_s=0.125)
        assert wait_until(lambda: any(tick["ok"] for tick in seen))
    tick = next(tick for tick in seen if tick["ok"])
    assert FROZEN_KEYS <= set(tick)
    assert (tick["waiting"], tick["running"], tick["kv"], tick["hits"], tick["preempts"]) == (3.0, 4.0, 0.5, None, 1.0)
    assert (tick["ok"], tick["bp"], tick["limit"], tick["inflight"], tick["reason"]) == (1, 0, 4, 0, "hold")
    assert (tick["latency_s"], tick["prep_workers"], tick["dialect"]) == (0.125, 2, "vllm")
    assert sum(tick["source_s"] for tick in seen) == pytest.approx(0.25, abs=0.01)
    assert (sum(tick["prep_s"] for tick in seen), sum(tick["prep_n"] for tick in seen)) == (0.75, 2)
    assert seen == limiter.ticks


def test_throughput_is_unknown_while_nothing_could_be_seen_of_it():
    """None, not zero: nothing in flight, or an endpoint that never reports tokens."""
    with quick() as limiter:
        assert wait_until(lambda: limiter.ticks)
        assert limiter.ticks[0]["tok_s"] is None
        with limiter.slot():
            count = len(limiter.ticks)
            assert wait_until(lambda: len(limiter.ticks) >= count + 2)
            assert limiter.ticks[-1]["tok_s"] is None
            limiter.observe(ok=True, tokens=5)
            count = len(limiter.ticks)
            assert wait_until(lambda: len(limiter.ticks) >= count + 3)
            assert limiter.ticks[-1]["tok_s"] == 0.0
    assert sum((tick["tok_s"] or 0) > 0 for tick in limiter.ticks) == 1


class Scripted:
    """A controller that returns what it was given, and keeps what it was shown."""

    last_reason = "scripted"

    def __init__(self, *limits: Any):
        self.limits = list(limits)
        self.shown: list[Obs] = []

    def decide(self, obs: Obs, limit: int) -> Any:
        self.shown.append(obs)
        decision = self.limits.pop(0) if self.limits else limit
        if isinstance(decision, BaseException):
            raise decision
        return decision


def test_any_object_that_decides_is_a_window_and_starts_at_16_unless_it_says_otherwise():
    assert AdaptiveLimiter(Scripted()).window.limit == 16
    assert AdaptiveLimiter().window.limit == 16
    assert AdaptiveLimiter(Fixed(3)).window.limit == 3
    assert AdaptiveLimiter(Auto(initial=5)).window.limit == 5


def test_a_decision_is_in_force_at_once_and_its_followers_are_told():
    told: list[int] = []
    with quick(Scripted(20, 7)) as limiter:
        limiter.subscribe(told.append)
        assert wait_until(lambda: told[-1:] == [7])
        assert limiter.window.limit == 7
        assert wait_until(lambda: len(limiter.ticks) >= 3)
        limiter.unsubscribe(told.append)
        limiter.unsubscribe(told.append)
    assert [tick["limit"] for tick in limiter.ticks[:3]] == [16, 20, 7], "a record shows the window that it judged"


@pytest.mark.parametrize("decision", [0, -3, 0.4])
def test_a_window_is_never_below_one(decision):
    with quick(Scripted(decision)) as limiter:
        assert wait_until(lambda: limiter.ticks)
        assert wait_until(lambda: limiter.window.limit == 1)


def test_a_controller_that_dies_releases_those_who_wait_and_refuses_those_who_come():
    controller = Scripted()
    with pytest.raises(FatalTransportError, match="controller loop died: ZeroDivisionError: oops") as raised:
        with quick(controller) as limiter:
            outcome: list[Any] = []
            serials = [limiter.admit() for _ in range(16)]
            waiting = take_slot(limiter, outcome)
            assert wait_until(lambda: limiter.window._fresh)
            controller.limits.append(ZeroDivisionError("oops"))
            waiting.join(10)
            assert isinstance(outcome[0], FatalTransportError)
            with pytest.raises(FatalTransportError, match="controller loop died: ZeroDivisionError: oops"):
                limiter.admit()
            for serial in serials:
                limiter.leave(serial)
            assert limiter.window.inflight == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_the_bodys_own_exception_wins_over_the_controllers():
    with pytest.raises(KeyError, match="mine"):
        with quick(Scripted(ZeroDivisionError())) as limiter:
            assert wait_until(lambda: limiter.window._failure)
            raise KeyError("mine")


@pytest.mark.parametrize("part", ["signals", "on_tick", "follower"])
def test_whatever_dies_in_a_tick_is_no_silent_end_of_ticks(part):
    class Broken:
        def read(self) -> None:
            raise OSError("broken")

    def broken(_: Any) -> None:
        raise OSError("broken")

    options: dict[str, Any] = {"signals": {"signals": Broken()}, "on_tick": {"on_tick": broken}}.get(part, {})
    with pytest.raises(FatalTransportError, match="controller loop died: OSError: broken"):
        with quick(**options) as limiter:
            if part == "follower":
                limiter.subscribe(broken)
            assert wait_until(lambda: limiter.window._failure)


def test_the_controller_is_shown_the_tick():
    controller = Scripted()
    with quick(controller) as limiter:
        with limiter.slot():
            limiter.observe(ok=True, tokens=10, latency_s=0.5)
            limiter.observe(ok=False)
            limiter.observe(ok=False, rate_limited=True)
            assert wait_until(lambda: any(obs.successes for obs in controller.shown))
    obs = next(obs for obs in controller.shown if obs.successes)
    assert (obs.successes, obs.backpressure, obs.rate_limited, obs.inflight, obs.latency_s) == (1, 1, 1, 1, 0.5)
    assert obs.tick_s > 0 and obs.oldest_s > 0 and obs.tok_s == pytest.approx(10 / obs.tick_s)
    assert (obs.waiting, obs.running, obs.kv, obs.engine_tokens, obs.input_bound) == (None, None, None, None, False)


def test_a_run_shorter_than_a_tick_still_leaves_one_record():
    with slow() as limiter:
        limiter.observe(ok=True, tokens=3)
    assert [(tick["ok"], tick["reason"]) for tick in limiter.ticks] == [(1, "end")]


def test_a_limiter_that_saw_nothing_leaves_no_record():
    with slow() as limiter:
        pass
    assert limiter.ticks == []


def test_a_limiter_is_opened_once_and_nothing_is_left_of_it():
    limiter = slow()
    assert not product_threads(), "nothing starts before the block"
    with limiter:
        assert product_threads() == ["saturate-controller"]
        with pytest.raises(RuntimeError, match="make one for each `with` block"):
            limiter.__enter__()
    assert not product_threads()


@pytest.mark.parametrize("window", [8, 2.5, True])
def test_a_number_is_no_window_and_the_sentence_says_what_is(window):
    with pytest.raises(TypeError, match=r"Fixed\(.*\) for a fixed window, or Auto\(\)"):
        AdaptiveLimiter(window)


@pytest.mark.parametrize("window", ["auto", Fixed, Auto, object()])
def test_what_cannot_decide_is_no_window(window):
    with pytest.raises(TypeError, match="an object with decide"):
        AdaptiveLimiter(window)
