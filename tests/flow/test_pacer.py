"""Two valves: the window is found, the pacer is told. Under a quota at most 1 % of requests get a 429, and at least
97 % of the quota is used, after the first minute; measured in virtual minutes against every kind of quota."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from saturate import AdaptiveClient, Fixed
from saturate.flow.pacer import MAX_PAUSE_S, Pace, Pacer, likely_tokens
from saturate.http.errors import Interrupted
from saturate.http.quota import Quota, read_quotas
from saturate.simulate import Faults, Simulator
from tests.conftest import wait_until
from tests.flow.quota_model import (
    Bucket,
    FixedWindow,
    SlidingWindow,
    date,
    fraction,
    ietf_headers,
    run,
    whole,
    x_headers,
)

KINDS = {
    "bucket": lambda quota: Bucket(quota),
    "small bucket": lambda quota: Bucket(quota, quota / 10),
    "fixed window": lambda quota: FixedWindow(quota),
    "fixed window, half over": lambda quota: FixedWindow(quota, 60.0, 30.0),
    "sliding window": lambda quota: SlidingWindow(quota),
}
WAYS: dict[str, dict[str, Any]] = {
    "told": {},
    "x-ratelimit": {"headers": x_headers},
    "ratelimit": {"headers": ietf_headers},
    "whole seconds": {"retry_after": whole},
    "fractions": {"retry_after": fraction},
    "a date": {"retry_after": date},
}


def first_measured(kind: str) -> float:
    """The end of the first minute, or of the window in which it ends."""
    return 90.0 if "half over" in kind else 60.0


def seconds(low: float, high: float):
    return lambda rng: rng.uniform(low, high)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("quota", "window", "latency"), [(600, 64, (0.1, 0.4)), (300, 256, (2.0, 6.0))])
def test_after_the_first_minute_one_in_a_hundred_is_refused_at_most_and_97_percent_used(
    kind, way, quota, window, latency
):
    pacer = Pacer(Pace(requests_per_minute=quota) if way == "told" else None)
    start = first_measured(kind)
    log = run(pacer, KINDS[kind](quota), start + 240, window, seconds(*latency), **WAYS[way])
    for end in (start + 120, start + 240):
        assert log.refusals(start, end) <= 0.01
        assert log.used(start, end, quota) >= 0.97


@pytest.mark.parametrize("kind", KINDS)
def test_a_told_pace_is_never_refused_from_the_first_row_on(kind):
    log = run(Pacer(Pace(requests_per_minute=600)), KINDS[kind](600), 240)
    if kind != "fixed window, half over":
        assert log.used(0, 240, 600) >= 0.98
    assert log.refused == []


@pytest.mark.parametrize("seed", range(3))
def test_a_told_token_quota_is_used_and_kept_whatever_the_rows_cost(seed):
    """Estimated at 4,000 tokens a row by max_tokens, of which rows use some hundreds."""
    pacer = Pacer(Pace(tokens_per_minute=200_000))
    server = Bucket(200_000)
    log = run(pacer, server, 300, cost=lambda rng: rng.lognormvariate(math.log(300), 0.7), estimate=4000.0, seed=seed)
    used = sum(tokens for t, tokens in log.tokens if t >= 60) / (200_000 * 4)
    assert log.refusals(60, 300) <= 0.01
    assert used >= 0.97


# -- after a Retry-After


def test_while_a_retry_after_runs_nobody_leaves_and_afterwards_no_herd_does():
    """The server refuses everything from second 100 on, asking for 20 s."""
    pacer = Pacer(Pace(requests_per_minute=600))
    server = Bucket(600)

    def shut() -> None:
        server.admit = lambda t, cost=1.0: max(0.0, 120.0 - t) if t < 120 else Bucket.admit(server, t, cost)

    log = run(pacer, server, 180, at={100.0: shut})
    arrivals = sorted(log.accepted + log.refused)
    assert not [t for t in arrivals if 101 < t < 119.5]
    after = [t for t in arrivals if t >= 119.5]
    for start in range(120, 178):
        assert sum(start <= t < start + 1 for t in after) <= 16, "about ten a second"


def test_a_retry_after_of_half_an_hour_stops_everybody_for_a_minute_at_most():
    pacer = Pacer()
    pacer.start(0.0)
    assert pacer.refused(10.0, 9.9, 50, 1800.0, {}) and not pacer.pacing, "one alone may be its row's own matter"
    assert pacer.refused(10.0, 9.9, 51, 1800.0, {}) and pacer.pacing
    turn = pacer.reserve(10.0)
    asked, now = 0, 10.0
    while (wait := pacer.wait_s(now, turn)) > 0:
        now += wait
        asked += 1
    assert now <= 10.0 + MAX_PAUSE_S + 1.0
    assert asked > 10, "a long wait is looked at again and again"
    assert pacer.news == ["rate limited: waiting 1800 s as asked (a try every 60 s)"]


def test_a_429_without_retry_after_and_without_quota_headers_is_not_the_pacers_business():
    pacer = Pacer()
    pacer.start(0.0)
    assert pacer.refused(1.0, 0.9, 10, None, {"content-type": "application/json"}) is False
    assert pacer.refused(1.0, 0.9, 10, float("nan"), {}) is False
    assert not pacer.pacing and pacer.requests_per_minute is None and pacer.news == []


def test_a_refusal_of_a_request_sent_before_the_last_correction_changes_nothing():
    pacer = Pacer()
    pacer.start(0.0)
    for serial in range(600, 610):
        pacer.refused(2.0, 1.9, serial, 1.0, {})
    before = pacer.requests_per_minute
    for serial in range(610, 640):
        pacer.refused(2.5, 1.95, serial, 1.0, {})
    assert pacer.requests_per_minute >= before / 2


# -- quotas that change


@pytest.mark.parametrize("way", ["x-ratelimit", "ratelimit"])
@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_published_quota_that_changes_is_followed_within_a_minute(way, factor):
    server = Bucket(600)

    def change() -> None:
        server.limit = server.size = 600 * factor

    log = run(Pacer(), server, 420, window=64, at={120.0: change}, **WAYS[way])
    assert log.refusals(180, 420) <= 0.01
    assert log.used(180, 420, 600 * factor) >= 0.97


@pytest.mark.parametrize("kind", ["bucket", "fixed window", "sliding window"])
def test_a_quota_cut_to_a_quarter_is_found_again_within_a_minute_from_refusals_alone(kind):
    server = KINDS[kind](600)

    def cut() -> None:
        server.limit = server.size = 150.0

    log = run(Pacer(), server, 480, at={120.0: cut}, retry_after=whole)
    assert log.refusals(240, 480) <= 0.02
    assert log.used(240, 480, 150) >= 0.90


@pytest.mark.parametrize("kind", ["bucket", "fixed window", "sliding window"])
def test_a_quota_raised_fourfold_is_found_within_ten_minutes_from_refusals_alone(kind):
    server = KINDS[kind](600)

    def lift() -> None:
        server.limit = server.size = 2400.0

    log = run(Pacer(), server, 1500, at={120.0: lift}, retry_after=whole)
    assert log.used(900, 1500, 2400) >= 0.90
    assert log.refusals(240, 1500) <= 0.01


# -- what headers say


def test_a_days_limit_is_not_taken_for_a_minutes():
    """10,000 a day with 8.64 s to get one back, as OpenAI says it: the run is not held at seven a minute."""
    server = Bucket(10_000)
    server.limit = 10_000 / 1440

    def headers(server, t):
        left, reset = server.remaining(t)
        told = {"x-ratelimit-limit-requests": "10000", "x-ratelimit-reset-requests": f"{reset:.2f}s"}
        return {**x_headers(server, t), **told}

    pacer = Pacer()
    log = run(pacer, server, 20, headers=headers)
    assert pacer.requests_per_minute is None
    assert len(log.accepted) > 4000 and log.refused == []


def test_a_limit_by_the_second_is_not_taken_for_a_minutes_for_long():
    """Ten a second, without a word about the window: what remains shows that the pace is far too slow."""
    log = run(Pacer(), FixedWindow(10, 1.0), 600, headers=x_headers)
    assert log.used(360, 600, 600) >= 0.40
    assert log.refusals(60, 600) <= 0.01


@pytest.mark.parametrize(
    ("headers", "quotas"),
    [
        (
            {
                "x-ratelimit-limit-requests": "600",
                "x-ratelimit-remaining-requests": "599",
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-limit-tokens": "90000",
                "x-ratelimit-remaining-tokens": "89000",
                "x-ratelimit-reset-tokens": "120ms",
            },
            {"requests": Quota(600, 599, 360.0), "tokens": Quota(90000, 89000, 0.12)},
        ),
        (
            {"ratelimit-limit": "600", "ratelimit-remaining": "12", "ratelimit-reset": "30"},
            {"requests": Quota(600, 12, 30.0)},
        ),
        (
            {"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "5", "ratelimit-reset": "9"},
            {"requests": Quota(100, 5, 9.0, 60.0)},
        ),
        (
            {"ratelimit": '"minute";r=50;t=30', "ratelimit-policy": '"minute";q=100;w=60, "day";q=1000;w=86400'},
            {"requests": Quota(100, 50, 30.0, 60.0)},
        ),
        ({"ratelimit-policy": "600;w=60"}, {"requests": Quota(600, None, None, 60.0)}),
        ({"x-ratelimit-limit-tokens": "1000"}, {"tokens": Quota(1000)}),
        (
            {"x-ratelimit-limit-requests": "10", "x-ratelimit-reset-requests": "1d2h"},
            {"requests": Quota(10, None, 93600.0)},
        ),
        ({"content-type": "text/plain"}, {}),
    ],
)
def test_every_spelling_of_quota_headers_is_read(headers, quotas):
    assert read_quotas(headers) == quotas


HOSTILE = [
    "", " ", "-1", "0", "nan", "NaN", "inf", "-inf", "1e400", "1e-400", "9" * 400, "ten", "10 per minute", "0x10", "٣",
    "½", "1,2,3", ";;;", "=", '"', '"a";q=;w=', '"a";q=-5;w=60', '"a";q=nan;w=60', '"a";q=10;w=0', "1s2m", "ms", "-5s",
    "999999999d", "\x00", "x" * 100_000, "1970-01-01T00:00:00Z", "None", "null", "[]",
]  # fmt: skip
NAMES = [
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
    "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit", "ratelimit-policy",
]  # fmt: skip


def test_no_header_whatever_it_holds_stops_a_run():
    rng = random.Random(0)
    for _ in range(1000):
        pacer = Pacer()
        pacer.start(0.0)
        now = 0.0
        for _ in range(5):
            now += rng.random()
            headers = {name: rng.choice(HOSTILE) for name in NAMES if rng.random() < 0.5}
            headers["x-ratelimit-limit-requests"] = rng.choice([*HOSTILE, "600"])
            pacer.accepted(now, now - 0.1, rng.choice([0, 5]), headers)
            asked = rng.choice([None, 0.0, -3.0, math.nan, math.inf, 1e300])
            pacer.refused(now, now - 0.1, rng.randrange(9), asked, headers)
            now += 61.0
            turn = pacer.reserve(now, 10.0)
            for _ in range(80):
                wait = pacer.wait_s(now, turn)
                assert 0.0 <= wait < math.inf
                if wait == 0:
                    break
                now += wait
            else:
                pytest.fail(f"stopped by {headers}")


# -- clocks


@pytest.mark.parametrize("leap", [3600.0, 1e9])
def test_a_clock_that_jumps_ahead_lets_no_herd_out(leap):
    log = run(Pacer(Pace(requests_per_minute=600)), Bucket(600, 60), 120, clock=lambda t: t + leap * (t > 60))
    assert log.refusals(0, 120) <= 0.01
    assert log.used(0, 120, 600) >= 0.95


@pytest.mark.parametrize("leap", [5.0, 3600.0])
def test_a_clock_set_back_freezes_nothing(leap):
    log = run(Pacer(Pace(requests_per_minute=600)), Bucket(600, 60), 120, clock=lambda t: t - leap * (t > 60))
    assert log.used(0, 120, 600) >= 0.95
    log = run(Pacer(), Bucket(600, 60), 240, clock=lambda t: t - leap * (t > 30))
    assert log.used(120, 240, 600) >= 0.90


# -- what the user says, and hears


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "a Pace needs a limit"),
        ({"requests_per_minute": 0}, "requests_per_minute must be a finite number above 0, got 0"),
        ({"tokens_per_minute": -5}, "tokens_per_minute must be a finite number above 0"),
        ({"tokens_per_minute": float("nan")}, "finite"),
        ({"requests_per_minute": float("inf")}, "finite"),
        ({"requests_per_minute": "600"}, "requests_per_minute must be a number, got '600'"),
        ({"requests_per_minute": True}, "must be a number"),
    ],
)
def test_a_pace_that_makes_no_sense_is_refused_with_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pace(**arguments)


def test_a_pace_is_a_value():
    assert Pace(600) == Pace(requests_per_minute=600) and hash(Pace(600)) == hash(Pace(600))
    with pytest.raises(AttributeError):
        Pace(600).requests_per_minute = 5  # type: ignore[misc]


def test_a_number_for_a_pace_is_refused_at_the_call():
    with pytest.raises(TypeError, match=r"pace must be a Pace such as Pace\(requests_per_minute=600\), got 600"):
        AdaptiveClient("http://127.0.0.1:9", pace=600)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["x-ratelimit", "whole seconds"])
@pytest.mark.parametrize("kind", ["bucket", "fixed window"])
def test_a_learned_quota_is_said_and_not_said_again(kind, way):
    pacer = Pacer()
    run(pacer, KINDS[kind](600), 600, **WAYS[way])
    learned = [sentence for sentence in pacer.news if sentence.startswith("quota learned: about ")]
    assert 1 <= len(learned) <= 2
    assert 540 <= float(learned[-1].split()[3]) <= 660
    assert len(pacer.news) <= 10, pacer.news


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"max_tokens":100}', 18 / 4 + 100),
        (b'{"max_completion_tokens": 7, "x": 1}', 36 / 4 + 7),
        (b"", 0.0),
        (b"x" * 400, 100.0),
    ],
)
def test_a_rows_tokens_are_guessed_from_its_size_and_its_max_tokens(body, tokens):
    assert likely_tokens(body) == tokens


# -- in a client

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_an_unpaced_client_pays_next_to_nothing():
    pacer = Pacer()
    pacer.start(0.0)
    for i in range(40):
        pacer.accepted(i * 0.01, i * 0.01, 5, {})
    assert not pacer.pacing and not pacer.listening


def test_a_row_that_waits_for_its_turn_holds_no_slot_and_can_be_interrupted():
    with Simulator(latency_s=0) as server:
        with AdaptiveClient(
            server.endpoint, window=Fixed(4), signal_source="none", pace=Pace(1), tick_s=0.05
        ) as client:
            assert client.post(BODY)[1] is None
            waiter = threading.Thread(target=lambda: pytest.raises(Interrupted, client.post, BODY), daemon=True)
            waiter.start()
            time.sleep(0.2)
            assert client.limiter.window.inflight == 0 and len(server.received) == 1
            client.interrupt({waiter.ident})
            waiter.join(2)
            assert not waiter.is_alive()


def test_seconds_at_the_pacer_and_the_quota_in_force_are_in_the_telemetry(caplog):
    caplog.set_level("INFO", "saturate")
    faults = Faults("quota:per_minute=1200,burst=0.01")
    with Simulator(latency_s=0, faults=faults) as server:
        with AdaptiveClient(server.endpoint, window=Fixed(4), signal_source="none", tick_s=0.05) as client:
            for i in range(30):
                client.post({**BODY, "user": str(i)})
            assert wait_until(lambda: sum(tick["pace_s"] for tick in client.limiter.ticks) > 0.5)
            assert client.limiter.ticks[-1]["pace_rpm"] == pytest.approx(0.99 * 1200)
    assert "quota learned: about 1188 requests a minute" in caplog.text


def test_a_429_with_quota_headers_is_a_quota_though_it_has_no_retry_after():
    faults = Faults("quota:per_minute=600,burst=0.001,retry_after=none")
    with Simulator(latency_s=0, faults=faults) as server:
        with AdaptiveClient(server.endpoint, window=Fixed(4), signal_source="none", tick_s=60) as client:
            threads = [threading.Thread(target=client.post, args=({**BODY, "user": str(i)},)) for i in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            tick = client.limiter.take_tick()
            assert tick.rate_limited > 0 and tick.bp == 0


@pytest.mark.slow
def test_the_benchmark_holds_in_its_short_form():
    script = Path(__file__).parents[2] / "benchmarks" / "pace.py"
    done = subprocess.run([sys.executable, str(script), "--short"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
