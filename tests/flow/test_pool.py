"""The request threads: as many as the target, started only for rows, and the last one says that it is over."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from saturate.flow.pool import RequestPool
from tests.conftest import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Died(Exception):
    """What ends a thread in these tests."""


class Work:
    """A pool over a plain queue of rows; a thread leaves at `None` or when it is one too many."""

    def __init__(self) -> None:
        self.rows: queue.Queue[Any] = queue.Queue()
        self.taken: list[Any] = []
        self.emptied = 0
        self.pool = RequestPool(self._work, self.rows.qsize, self._emptied)

    def _work(self) -> None:
        while not self.pool.excess():
            row = self.rows.get()
            if row is None:
                self.rows.put(None)
                return
            if isinstance(row, BaseException):
                raise row
            self.taken.append(row)

    def _emptied(self) -> None:
        self.emptied += 1

    def add(self, *rows: Any) -> None:
        for row in rows:
            self.rows.put(row)
            self.pool.grow()

    def finish(self) -> None:
        self.rows.put(None)
        self.pool.end()
        assert self.pool.wait_empty(10)


@pytest.fixture
def work():
    made = Work()
    yield made
    made.finish()


def test_no_thread_starts_before_there_is_a_row(work):
    work.pool.resize(50)
    assert work.pool.size == 0


def test_rows_start_threads_up_to_the_target(work):
    work.pool.resize(3)
    work.add(*range(10))
    assert wait_until(lambda: len(work.taken) == 10)
    assert work.pool.size == 3
    assert len(work.pool.idents()) == 3


def test_a_larger_target_starts_threads_for_the_rows_that_wait(work):
    hold = threading.Event()
    work.pool._backlog = lambda: 5
    work.pool._work = lambda: hold.wait(10)
    work.pool.resize(20)
    assert work.pool.size == 5, "one for each row"
    work.pool.resize(7)
    assert work.pool.size == 7
    hold.set()


def test_a_smaller_target_lets_the_surplus_leave_as_they_come_by(work):
    work.pool.resize(8)
    work.add(*range(8))
    assert wait_until(lambda: len(work.taken) == 8)
    assert work.pool.size == 8
    work.pool.resize(2)
    work.add(*range(8, 40))
    assert wait_until(lambda: len(work.taken) == 40)
    assert wait_until(lambda: work.pool.size == 2)
    assert work.emptied == 0


def test_the_end_is_said_once_after_the_last_thread_has_left(work):
    work.pool.resize(4)
    work.add(*range(20))
    work.finish()
    assert wait_until(lambda: work.emptied == 1)
    work.pool.end()
    assert work.emptied == 1
    assert sorted(work.taken) == list(range(20))


def test_the_end_is_said_when_there_was_never_a_row(work):
    assert work.emptied == 0
    work.pool.end()
    assert work.emptied == 1


def test_threads_that_leave_early_are_not_the_end(work):
    work.pool.resize(2)
    work.add(Died(), Died())
    assert work.pool.wait_empty(10)
    assert work.emptied == 0, "rows may still come"
    work.add(1)
    assert wait_until(lambda: work.taken == [1])


def test_a_thread_that_dies_of_an_exception_is_counted_out(work):
    work.pool.resize(1)
    work.add(Died())
    assert work.pool.wait_empty(10)
    assert work.pool.idents() == set() and not work.pool.has_current_thread()


def test_a_process_without_room_for_a_thread_goes_on_with_those_it_has(work, monkeypatch):
    work.pool.resize(3)
    work.add(1)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        work.add(2, 3)
    assert wait_until(lambda: sorted(work.taken) == [1, 2, 3])
    assert work.pool.size == 1


def test_without_room_for_even_one_thread_it_says_so(work, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            work.add(1)
    assert work.pool.size == 0


def test_wait_empty_gives_up_after_its_time(work):
    work.pool.resize(1)
    work.add(1)
    assert wait_until(lambda: work.taken == [1])
    assert work.pool.wait_empty(0.01) is False


def test_the_pool_knows_its_own_threads(work):
    found: list[bool] = []
    work.pool._work = lambda: found.append(work.pool.has_current_thread())
    work.rows.put(0)
    work.pool.grow()
    assert wait_until(lambda: found == [True])
    assert not work.pool.has_current_thread()


def test_resizing_all_the_time_loses_no_row(work):
    for i in range(600):
        work.pool.resize(1 + i * 7 % 13)
        work.add(i)
    work.finish()
    assert sorted(work.taken) == list(range(600))
    assert wait_until(lambda: work.emptied == 1)
