"""`prepare_ahead`: a bounded number of calls in flight, the order of rows kept."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from saturate import prepare_ahead
from tests.conftest import wait_until


def pairs(count: int) -> list[tuple[str, dict[str, Any]]]:
    return [(str(i), {"i": i}) for i in range(count)]


def prepare_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("saturate-prepare")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert wait_until(lambda: not prepare_threads())


@pytest.mark.parametrize("workers", [1, 2, 4, 50])
@pytest.mark.parametrize("count", [0, 1, 4, 23])
def test_every_row_comes_out_in_order(workers, count):
    doubled = list(prepare_ahead(pairs(count), lambda row: 2 * row["i"], workers=workers))
    assert doubled == [(str(i), 2 * i) for i in range(count)]


def test_order_is_kept_though_the_first_is_the_slowest():
    first = threading.Event()

    def fn(row: dict[str, Any]) -> int:
        if row["i"] == 0:
            first.wait(10)
        elif row["i"] == 3:
            first.set()
        return row["i"]

    assert [value for _, value in prepare_ahead(pairs(8), fn, workers=4)] == list(range(8))


@pytest.mark.parametrize("workers", [1, 3])
def test_at_most_workers_calls_are_in_flight_and_no_row_is_pulled_beyond_them(workers):
    lock, running, most, pulled = threading.Lock(), 0, 0, 0
    release = threading.Event()

    def rows():
        nonlocal pulled
        for pair in pairs(100):
            pulled += 1
            yield pair

    def fn(row: dict[str, Any]) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        release.wait(10)
        with lock:
            running -= 1
        return row["i"]

    ahead = prepare_ahead(rows(), fn, workers=workers)
    assert pulled == 0, "nothing happens before the first pull"
    got: list[Any] = []
    taker = threading.Thread(target=lambda: got.extend(ahead), daemon=True)
    taker.start()
    assert wait_until(lambda: running == workers)
    time.sleep(0.05)
    assert (running, pulled, got) == (workers, workers, [])
    release.set()
    taker.join(10)
    assert len(got) == 100 and most <= workers


def test_an_exception_is_raised_when_its_rows_turn_comes():
    def fn(row: dict[str, Any]) -> int:
        if row["i"] == 2:
            raise ValueError("bad image")
        return row["i"]

    got: list[int] = []
    with pytest.raises(ValueError, match="bad image"):
        for _, value in prepare_ahead(pairs(10), fn, workers=4):
            got.append(value)
    assert got == [0, 1]


def test_a_source_that_raises_ends_it():
    def rows():
        yield "a", {}
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(prepare_ahead(rows(), lambda row: row))


def test_leaving_early_cancels_what_has_not_begun():
    begun: list[int] = []
    hold = threading.Event()
    executor = ThreadPoolExecutor(1)

    def fn(row: dict[str, Any]) -> int:
        begun.append(row["i"])
        if row["i"] == 1:
            hold.wait(10)
        return row["i"]

    ahead = prepare_ahead(pairs(10), fn, workers=5, executor=executor)
    assert next(ahead) == ("0", 0)
    assert wait_until(lambda: begun == [0, 1])
    ahead.close()
    hold.set()
    # The pool is the caller's: it still works, and comes to this only after whatever was queued before.
    assert executor.submit(lambda: "alive").result(10) == "alive"
    assert begun == [0, 1]
    executor.shutdown()


def double(row: dict[str, Any]) -> int:
    return 2 * row["i"]


def test_a_process_pool_of_the_callers_prepares_rows():
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as executor:
        assert list(prepare_ahead(pairs(5), double, workers=2, executor=executor)) == [
            (str(i), 2 * i) for i in range(5)
        ]


@pytest.mark.parametrize("workers", [0, -1, 2.0, True, None])
def test_workers_is_at_least_one_or_the_call_fails(workers):
    with pytest.raises(ValueError, match="workers must be an int >= 1"):
        prepare_ahead(pairs(1), double, workers=workers)


def test_misuse_fails_at_the_call():
    with pytest.raises(TypeError, match="fn must be a function row -> value, got dict"):
        prepare_ahead(pairs(1), {})
    with pytest.raises(TypeError, match="rows must be an iterable"):
        prepare_ahead(None, double)
