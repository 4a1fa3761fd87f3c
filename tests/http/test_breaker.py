"""The circuit breaker: opens after eight failures in a row, probes with one thread, always releases its waiters."""

from __future__ import annotations

import threading

import pytest

from saturate.http.breaker import Breaker
from saturate.http.errors import FatalTransportError, Interrupted
from tests.conftest import wait_until


def opened(**kwargs) -> Breaker:
    breaker = Breaker(probe_every_s=0.01, **kwargs)
    for _ in range(8):
        breaker.failure("http 503")
    assert breaker.is_open
    return breaker


def test_seven_failures_leave_it_closed_and_a_success_starts_the_count_again():
    breaker = Breaker()
    for _ in range(3):
        for _ in range(7):
            breaker.failure("http 500")
        breaker.success()
    assert not breaker.is_open and breaker.opens == 0
    assert breaker.gate(lambda: pytest.fail("no probe")) == 0.0


def test_the_first_answer_closes_it_and_releases_every_waiter():
    breaker = opened()
    down = threading.Event()
    probes = []

    def probe():
        probes.append(threading.get_ident())
        return None if down.is_set() else "http 503"

    passed = []
    threads = [threading.Thread(target=lambda: passed.append(breaker.gate(probe)), daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: len(probes) >= 3)
    assert not passed
    down.set()
    for thread in threads:
        thread.join(10)
    assert len(passed) == 20
    assert len(set(probes)) == 1, "exactly one waiter probes"
    assert not breaker.is_open and breaker.opens == 1


def test_it_is_dead_after_its_patience_for_everyone_then_and_later():
    now = [0.0]
    breaker = opened(dead_after_s=600, clock=lambda: now[0])

    def probe():
        now[0] += 100
        return "transport: ConnectError: refused"

    with pytest.raises(FatalTransportError, match="has not answered for 600 s.*refused.*run the same command again"):
        breaker.gate(probe)
    with pytest.raises(FatalTransportError):
        breaker.gate(probe)


def test_a_prober_that_is_called_off_hands_over_to_another_waiter():
    breaker = opened()
    off = threading.Event()
    up = threading.Event()
    first_probing = threading.Event()

    def probe():
        first_probing.set()
        return None if up.is_set() else "http 503"

    outcome = []

    def first():
        try:
            breaker.gate(probe, off.is_set)
        except Interrupted:
            outcome.append("interrupted")

    a = threading.Thread(target=first, daemon=True)
    a.start()
    assert first_probing.wait(10)
    b = threading.Thread(target=lambda: outcome.append(breaker.gate(probe)), daemon=True)
    b.start()
    off.set()
    breaker.wake()
    a.join(10)
    assert outcome == ["interrupted"]
    up.set()
    b.join(10)
    assert len(outcome) == 2 and not breaker.is_open


def test_a_probe_that_raises_leaves_the_place_of_the_prober_free():
    breaker = opened()

    def broken():
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError):
        breaker.gate(broken)
    breaker.gate(lambda: None)
    assert not breaker.is_open
