"""A request that the server accepted and forgot is found out, its socket closed, and the row sent again."""

from __future__ import annotations

from typing import Any

import pytest

from saturate import AdaptiveClient, Fixed, stream, through
from saturate.flow import overdue
from saturate.flow.overdue import Overdue
from saturate.simulate import Faults, Simulator
from tests.conftest import chat, text, texts


def tick(waiting: Any = 0, running: Any = 0, inflight: int = 1, ok: int = 0) -> dict[str, Any]:
    return {"waiting": waiting, "running": running, "inflight": inflight, "ok": ok}


def after(*ticks: dict[str, Any]) -> Overdue:
    state = Overdue()
    for record in ticks:
        state.tick(record, 2.0)
    return state


def test_the_forecast_is_ten_times_the_longest_recent_answer_and_at_least_a_minute():
    state = Overdue()
    assert state.age_s(0.5, 128) == 60
    assert state.age_s(30.0, 128) == 300


def test_a_few_answers_are_no_forecast():
    assert Overdue().age_s(0.5, 63) is None
    assert Overdue().age_s(None, 0) is None


def test_a_server_that_ran_our_requests_and_then_nothing_for_five_ticks_has_forgotten_the_rest():
    busy = tick(running=8, inflight=8, ok=3)
    assert after(busy, *[tick()] * 4).age_s(None, 0) is None
    assert after(busy, *[tick()] * 5).age_s(None, 0) == 10


def test_gauges_that_never_showed_our_requests_prove_nothing():
    """One replica of several behind a balancer, or an engine that does not count what its HTTP layer holds."""
    assert after(tick(running=3, inflight=8), *[tick()] * 20).age_s(None, 0) is None
    assert after(*[tick()] * 20).age_s(None, 0) is None


@pytest.mark.parametrize("sign", [tick(waiting=1), tick(running=1), tick(ok=1), tick(inflight=0), tick(None, None)])
def test_any_sign_of_life_starts_the_count_again(sign):
    busy = tick(running=8, inflight=8, ok=3)
    assert after(busy, *[tick()] * 4, sign, *[tick()] * 4).age_s(None, 0) is None


def test_a_run_does_not_hang_on_its_last_forgotten_request(monkeypatch):
    monkeypatch.setattr(overdue, "FORECAST_AT_LEAST_S", 0.5)
    with Simulator(latency_s=0.01, faults=Faults("hang:contains=row 99,attempts=1")) as server:
        with AdaptiveClient(server.endpoint, window=Fixed(8), signal_source="none", tick_s=0.1) as client:
            done = list(through(client, stream(texts(100), id_key="text"), chat, text))
    assert len(done) == 100 and all(d.error is None for d in done)
    assert len(server.received) == 101


def test_an_idle_server_while_we_wait_is_enough(monkeypatch):
    with Simulator(tokens=20, step_s=0.02, faults=Faults("hang:contains=row 9,attempts=1")) as server:
        with AdaptiveClient(server.endpoint, window=Fixed(4), tick_s=0.1) as client:
            rows = ((str(i), {"text": f"row {i}"}) for i in range(10))
            slow = lambda row: {**chat(row), "max_tokens": 40}  # noqa: E731
            done = list(through(client, rows, slow, text))
    assert len(done) == 10 and all(d.error is None for d in done)
    assert len(server.received) == 11
