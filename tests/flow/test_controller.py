"""The window controller, fed by hand: what one tick leads to. Whole runs are in test_controller_runs.py."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest

from saturate.flow.controller import Auto, Fixed, Obs


def drive(controller: Auto, limit: int, *ticks: dict[str, Any]) -> list[int]:
    """The windows that a row of ticks leads to; a tick may be a function of the window in force."""
    windows = []
    for tick in ticks:
        obs = tick(limit) if callable(tick) else tick
        limit = controller.decide(obs, limit)
        windows.append(limit)
    return windows


def busy(successes: int, **more: Any) -> Any:
    """A tick whose window was full, and in which so many rows came back."""
    return lambda limit: {
        "inflight": limit, "successes": successes, "tok_s": 100.0 * successes / 2, "tick_s": 2.0, **more}


def turnover(limit: int) -> dict[str, Any]:
    """A tick in which a window of rows came back."""
    return busy(limit)(limit)


# -- construction -----------------------------------------------------------------------------------------

def test_the_public_names_order_and_defaults_are_kept() -> None:
    auto = Auto(8, 16, 2, 512, 8, 0.9, 0.5, 1.05, 3)
    assert (auto.target_waiting, auto.initial, auto.min_limit, auto.max_limit) == (8, 16, 2, 512)
    assert (auto.step, auto.kv_hi, auto.hits_lo, auto.improve, auto.stall_ticks) == (8, 0.9, 0.5, 1.05, 3)
    assert Auto().initial == 16 and Auto().min_limit == 2


@pytest.mark.parametrize("wrong", [{"min_limit": 0}, {"min_limit": 8, "max_limit": 4}, {"step": 0}, {"stall_ticks": 0}])
def test_an_impossible_setting_is_a_value_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Auto(**wrong)


def test_the_first_window_is_put_between_the_bounds() -> None:
    assert Auto(initial=1, min_limit=4).initial == 4
    assert Auto(initial=5000, max_limit=100).initial == 100


def test_a_fixed_window_never_moves() -> None:
    fixed = Fixed(7)
    assert fixed.initial == 7 and fixed.last_reason == "hold"
    assert fixed.decide(Obs(backpressure=50), 7) == 7 and fixed.decide({}, 3) == 7


def test_a_fixed_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Fixed(0)


@pytest.mark.parametrize("n", [True, 2.0, "8", None])
def test_a_fixed_window_that_is_no_whole_number_is_refused_with_a_sentence(n: Any) -> None:
    with pytest.raises(TypeError, match="must be a whole number"):
        Fixed(n)


# -- observations -----------------------------------------------------------------------------------------

def test_an_obs_and_a_dict_lead_to_the_same_window_and_unknown_keys_are_dropped() -> None:
    tick = {"inflight": 16, "successes": 16, "tok_s": 800.0, "tick_s": 2.0}
    assert Auto().decide(Obs(**tick), 16) == Auto().decide({**tick, "colour": "red"}, 16) == 32


def test_the_same_observations_give_the_same_windows() -> None:
    rng = random.Random(3)
    ticks = [busy(rng.randrange(80), backpressure=rng.choice([0, 0, 0, 9]), latency_s=rng.random() * 9)
             for _ in range(300)]
    assert drive(Auto(), 16, *ticks) == drive(Auto(), 16, *ticks)


def test_the_observation_is_not_changed() -> None:
    tick = {"inflight": 16, "successes": 16, "kv": float("nan")}
    before = copy.copy(tick)
    Auto().decide(tick, 16)
    assert tick.keys() == before.keys() and tick["successes"] == 16


ODD = [None, 0, -1, 1e300, float("nan"), float("inf"), -float("inf"), "12", "many", True, 3, 0.5, [], 10**400]


def test_odd_observations_never_raise_and_the_window_stays_in_its_bounds() -> None:
    names = list(Obs.__dataclass_fields__)
    rng = random.Random(11)
    for _ in range(60):
        auto = Auto(min_limit=3, max_limit=200)
        limit = auto.initial
        for _ in range(60):
            obs = {name: rng.choice(ODD) if rng.random() < 0.4 else rng.randrange(100)
                   for name in names if rng.random() < 0.9}
            limit = auto.decide(obs, rng.choice([limit, limit, limit, 0, 10**6]))
            assert 3 <= limit <= 200 and isinstance(limit, int)
            assert isinstance(auto.last_reason, str)


def test_a_counter_that_starts_again_with_the_server_is_no_evidence() -> None:
    auto, limit = Auto(), 16
    for i, total in enumerate([1000, 3000, 5000, 10, 2010, 4010]):
        limit = auto.decide({"inflight": limit, "waiting": 0, "running": limit, "successes": 4, "tick_s": 2.0,
                             "engine_tokens": total, "preempts": 50 - 10 * i}, limit)
        assert math.isfinite(limit) and limit >= 16


# -- growing ----------------------------------------------------------------------------------------------

def test_the_window_doubles_every_tick_when_a_window_of_rows_comes_back_every_tick() -> None:
    # Doubling is not only for servers with gauges: hosted APIs have none.
    assert drive(Auto(initial=8), 8, turnover, turnover, turnover) == [16, 32, 64]

    def seen(limit: int) -> dict[str, Any]:
        return {**turnover(limit), "waiting": 0, "running": limit}

    assert drive(Auto(initial=8), 8, seen, seen, seen) == [16, 32, 64]


def test_a_window_through_which_nothing_has_come_back_is_never_widened() -> None:
    for gauges in ({}, {"waiting": 0, "running": 16, "kv": 0.1}):
        assert set(drive(Auto(), 16, *[busy(0, **gauges)] * 40)) == {16}
    counting = [busy(0, waiting=0, running=16, engine_tokens=1000 * i) for i in range(40)]
    assert set(drive(Auto(), 16, *counting)) == {16}


def test_long_generations_widen_only_after_a_window_of_rows() -> None:
    assert drive(Auto(), 16, *[busy(1)] * 16) == [16] * 15 + [32]


def test_the_engines_token_counters_widen_within_two_ticks_of_the_first_row() -> None:
    work, windows, limit, auto = 0, [], 16, Auto()
    for _ in range(14):
        work += 100 * limit                             # a server that a doubling makes twice as fast
        limit = auto.decide({"inflight": limit, "waiting": 0, "running": limit, "successes": 1, "latency_s": 30.0,
                             "tick_s": 2.0, "engine_tokens": work}, limit)
        windows.append(limit)
    assert windows[-1] >= 512


# A published vLLM measurement: 16 -> 32 gains 10 %, 32 -> 64 gains 114 %. Tokens a second by window.
FALSE_PLATEAU = ((1, 277), (8, 1881), (16, 3455), (32, 3798), (64, 8120), (128, 11556), (256, 15552), (512, 18746))


def plateau_rate(n: int) -> float:
    for (low, slow), (high, fast) in zip(FALSE_PLATEAU, FALSE_PLATEAU[1:]):
        if n <= high:
            return slow + (fast - slow) * (n - low) / (high - low)
    return FALSE_PLATEAU[-1][1]


@pytest.mark.parametrize("gauges", [False, True])
def test_a_false_plateau_is_left_while_readings_lag_two_ticks(gauges: bool) -> None:
    auto, windows = Auto(), [16, 16, 16]
    for _ in range(16):
        rate, limit = plateau_rate(windows[-3]), windows[-1]
        tick = {"inflight": limit, "successes": round(2 * rate / 768), "tok_s": rate, "latency_s": limit * 768 / rate,
                "tick_s": 2.0, **({"waiting": 0, "running": limit} if gauges else {})}
        windows.append(auto.decide(tick, limit))
    assert windows[-1] >= 512


def test_a_cold_engine_that_queues_the_whole_window_shows_no_backlog() -> None:
    cold = busy(0, waiting=16, running=0)
    assert drive(Auto(), 16, *[cold] * 6) == [16] * 6


def test_ticks_that_the_source_could_not_fill_are_no_evidence() -> None:
    auto = Auto()
    assert drive(auto, 16, *[{"inflight": 5, "successes": 30, "input_bound": True}] * 20) == [16] * 20
    assert auto.last_reason == "hold:input_bound"


def test_ticks_in_which_the_window_was_not_used_are_no_evidence() -> None:
    assert drive(Auto(), 16, *[{"inflight": 8, "successes": 8, "latency_s": 1.0}] * 20) == [16] * 20


def test_the_window_stops_at_its_ceiling() -> None:
    auto = Auto(max_limit=40)
    assert drive(auto, 16, *[turnover] * 4)[-1] == 40
    assert auto.last_reason in ("hold:ceiling", "hold:plateau")


# -- cutting ----------------------------------------------------------------------------------------------

def refused(limit: int) -> dict[str, Any]:
    return {"inflight": limit, "successes": 8, "backpressure": limit, "tick_s": 2.0}


def settled(limit: int, **more: Any) -> Auto:
    """A controller whose window was full and steady for a while."""
    auto = Auto(initial=limit)
    drive(auto, limit, *[busy(1, **more)] * 3)
    return auto


def test_refusals_halve_the_window() -> None:
    auto = settled(64)
    assert auto.decide(refused(64), 64) == 32 and auto.last_reason == "cut:bp"


@pytest.mark.parametrize("latency_s, ticks", [(0.5, 2), (None, 3), (30.0, 15)])
def test_one_cut_an_episode_while_the_old_window_drains(latency_s: Any, ticks: int) -> None:
    auto = settled(64)
    cut = {**refused(64), "latency_s": latency_s}
    assert auto.decide(cut, 64) == 32
    for _ in range(ticks):
        assert auto.decide(cut, 32) == 32 and auto.last_reason == "hold:cooldown"
    assert auto.decide(cut, 32) == 16


def test_the_cooldown_lasts_while_rows_of_the_old_window_are_out() -> None:
    auto = settled(64)
    auto.decide({**refused(64), "latency_s": 2.0}, 64)
    old = {"inflight": 32, "successes": 0, "oldest_s": 500.0, "latency_s": 2.0, "tick_s": 2.0}
    drive(auto, 32, old, old, old)
    assert auto.last_reason == "hold:cooldown"


def test_a_window_that_was_refused_while_it_grew_comes_back_to_what_was_accepted() -> None:
    auto = Auto()
    assert drive(auto, 16, turnover, turnover) == [32, 64]
    assert auto.decide({"inflight": 48, "successes": 30, "backpressure": 16, "latency_s": 1.0, "tick_s": 2.0}, 64) == 32
    assert drive(auto, 32, *[turnover] * 3)[-1] == 48


def test_a_failure_share_below_bp_frac_is_no_overload() -> None:
    auto = settled(64)
    assert auto.decide(busy(99, backpressure=1)(64), 64) == 64 or auto.last_reason == "grow"
    assert not auto.last_reason.startswith("cut")


def test_a_server_that_always_fails_a_few_is_not_cut_again_and_again() -> None:
    rng, auto, limit, cuts = random.Random(1), Auto(initial=40), 40, 0
    for _ in range(400):
        failed = sum(rng.random() < 0.02 for _ in range(20))
        limit = auto.decide(busy(20 - failed, backpressure=failed, latency_s=4.0)(limit), limit)
        cuts += auto.last_reason == "cut:bp"
    assert cuts <= 4


def test_a_small_share_of_failures_cuts_only_when_it_comes_again() -> None:
    auto = settled(64)
    few = busy(36, backpressure=4, latency_s=4.0)
    assert auto.decide(few(64), 64) == 64
    assert auto.decide(few(64), 64) == 32 and auto.last_reason == "cut:bp"


def test_a_refusal_that_names_its_wait_is_a_contract_and_cuts_nothing() -> None:
    auto = settled(64)
    assert drive(auto, 64, *[busy(20, rate_limited=10, latency_s=1.0)] * 10) == [64] * 10
    assert auto.last_reason == "hold:paced"


def test_silence_after_rows_is_a_stall_and_cuts_once() -> None:
    auto = settled(64, latency_s=1.0)
    windows = drive(auto, 64, *[busy(0, latency_s=1.0)] * 30)
    assert windows[-1] == 32 and sorted(set(windows)) == [32, 64]


def test_the_silence_after_a_refusal_is_no_stall() -> None:
    auto = settled(64)
    auto.decide(refused(64), 64)
    assert set(drive(auto, 32, *[busy(0)] * 30)) == {32}


def test_silence_before_the_first_row_is_no_stall() -> None:
    assert set(drive(Auto(), 16, *[busy(0)] * 300)) == {16}


def test_a_window_at_its_floor_is_held_there() -> None:
    auto = Auto(initial=2)
    drive(auto, 2, busy(1), busy(1))
    assert auto.decide(refused(2), 2) == 2 and auto.last_reason == "hold:floor"


def test_high_kv_memory_alone_is_no_reason_to_cut() -> None:
    # It is how a full server looks, and no current engine says how warm its prefix cache is.
    auto = settled(64)
    assert min(drive(auto, 64, *[busy(20, waiting=0, running=64, kv=0.97, preempts=0)] * 12)) == 64


def test_preemptions_with_full_memory_end_the_climb() -> None:
    auto = Auto()
    full = [busy(16, waiting=0, running=16, kv=0.97, preempts=5 * i) for i in range(6)]
    assert drive(auto, 16, *full)[-1] <= 32


def test_a_standing_queue_brings_the_window_to_what_runs_and_a_reserve_in_one_step() -> None:
    auto = Auto(initial=64)
    queued = busy(4, waiting=44, running=20, latency_s=5.0)
    assert drive(auto, 64, queued, queued) == [64, 28]
    assert auto.last_reason == "cut:queue"


def test_a_queue_that_stood_at_this_window_and_is_gone_widens_it() -> None:
    auto = Auto(initial=64)
    queued = busy(4, waiting=44, running=20, latency_s=5.0)
    drive(auto, 64, queued, queued)
    reserve = [busy(8, waiting=8, running=20, latency_s=5.0)] * 12
    larger = [busy(14, waiting=0, running=28, latency_s=5.0)] * 6
    assert set(drive(auto, 28, *reserve)) == {28}
    assert max(drive(auto, 28, *larger)) >= 56


def test_a_queue_that_comes_and_goes_with_full_memory_widens_nothing() -> None:
    auto = Auto(initial=64)
    queued = busy(4, waiting=44, running=20, latency_s=5.0)
    drive(auto, 64, queued, queued)
    reserve = [busy(8, waiting=8, running=20, kv=0.97, latency_s=5.0)] * 12
    none = [busy(8, waiting=0, running=28, kv=0.9, latency_s=5.0)] * 6
    assert max(drive(auto, 28, *reserve, *none)) <= 28


def test_a_queue_is_not_cut_again_while_the_old_window_drains() -> None:
    auto = Auto(initial=64)
    queued = busy(4, waiting=44, running=20, latency_s=5.0)
    drive(auto, 64, queued, queued)
    draining = {"inflight": 56, "successes": 4, "waiting": 36, "running": 20, "latency_s": 5.0, "tick_s": 2.0}
    assert drive(auto, 28, *[draining] * 5) == [28] * 5


def test_gauges_that_do_not_account_for_what_is_in_flight_show_no_queue() -> None:
    auto = Auto(initial=64)
    replica = busy(4, waiting=20, running=5, latency_s=5.0)         # one of several behind a balancer
    assert drive(auto, 64, *[replica] * 8) == [64] * 8


def test_a_probe_survives_the_loss_of_the_gauges() -> None:
    # It is judged by what came back, which needs no gauge.
    auto, limit, reasons = Auto(initial=16, max_limit=16), 16, []
    for i in range(60):
        gauges = {"waiting": 0, "running": limit, "engine_tokens": 1000.0 * i} if i < 10 else {}
        limit = auto.decide(busy(limit // 2, **gauges)(limit), limit)
        reasons.append(auto.last_reason)
    assert "probe" in reasons and reasons.index("probe") < len(reasons) - 1
    assert {"shrink", "revert"} & set(reasons)


def test_a_window_that_somebody_else_sets_is_taken_as_it_is() -> None:
    auto = settled(64)
    assert auto.decide(busy(4)(20), 20) == 20
    assert auto.decide(busy(4)(20), 20) == 20
