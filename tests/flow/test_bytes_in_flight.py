"""Bytes in flight are bounded like requests are: a burst of large images must not fill the host."""

from __future__ import annotations

import threading

import pytest

from saturate import AdaptiveClient, Fixed, through
from saturate.flow.window import Window
from saturate.simulate import Faults, Simulator
from tests.conftest import chat, text, wait_until


def test_requests_wait_while_the_bytes_on_the_wire_would_exceed_the_bound():
    rows = [(str(i), {"text": f"{i}" + "x" * 100_000}) for i in range(20)]
    with Simulator(latency_s=0, faults=Faults("hang")) as server:
        with AdaptiveClient(
            server.endpoint, window=Fixed(16), signal_source="none", max_bytes_in_flight=350_000
        ) as client:
            results = through(client, rows, chat, text)
            taker = threading.Thread(target=lambda: next(results, None), daemon=True)
            taker.start()
            assert wait_until(lambda: len(server.received) == 3)
            assert wait_until(lambda: client.limiter.window.bytes > 300_000)
            assert client.limiter.window.inflight == 3
            results.close()
            taker.join()
        assert client.limiter.window.bytes == 0


def test_one_request_larger_than_the_bound_goes_alone():
    window = Window(4, max_bytes=10)
    assert window.acquire(size=50) is False
    second = threading.Thread(target=window.acquire, kwargs={"size": 1}, daemon=True)
    second.start()
    assert wait_until(lambda: len(window._fresh) == 1)
    window.release(50)
    second.join(10)
    assert (window.inflight, window.bytes) == (1, 1)


def test_small_requests_do_not_overtake_a_large_one_that_waits():
    window = Window(4, max_bytes=10)
    window.acquire(size=8)
    order = []
    for name, size in (("large", 9), ("small", 1)):
        threading.Thread(target=lambda n=name, s=size: (window.acquire(size=s), order.append(n)), daemon=True).start()
        assert wait_until(lambda n=name: len(window._fresh) == (1 if n == "large" else 2))
    window.release(8)
    assert wait_until(lambda: len(order) == 2)
    assert window.bytes == 10


@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_a_bound_that_is_no_number_of_bytes_fails_at_the_call(value):
    with pytest.raises(ValueError, match="max_bytes_in_flight"):
        AdaptiveClient("http://h/v1", max_bytes_in_flight=value)
