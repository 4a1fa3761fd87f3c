"""The window: slots are given up to the limit, given back once, and every waiter is released."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest

from saturate import FatalTransportError
from saturate.flow.window import Window
from saturate.http.errors import Interrupted
from tests.conftest import wait_until


class Asker(threading.Thread):
    """A thread that asks for one slot, and what became of it."""

    def __init__(self, window: Window, retry: bool = False):
        super().__init__(daemon=True)
        self.window, self.retry = window, retry
        self.waited: object = None
        self.start()

    def run(self) -> None:
        try:
            self.waited = self.window.acquire(self.retry)
        except (Interrupted, FatalTransportError) as exc:
            self.waited = exc


def waiting(window: Window) -> int:
    return len(window._fresh) + len(window._retries)


def asking(window: Window, retry: bool = False) -> Asker:
    """An asker that has joined the queue."""
    before = waiting(window)
    asker = Asker(window, retry)
    assert wait_until(lambda: waiting(window) == before + 1)
    return asker


def test_slots_up_to_the_limit_are_given_at_once_and_the_next_waits():
    window = Window(2)
    assert (window.acquire(), window.acquire()) == (False, False)
    asker = asking(window)
    assert window.inflight == 2
    window.release()
    asker.join(10)
    assert asker.waited is True and window.inflight == 2


def test_waiters_are_served_in_their_order_and_retries_before_new_rows():
    window = Window(1)
    window.acquire()
    askers = [asking(window), asking(window), asking(window, retry=True), asking(window, retry=True)]
    order = []
    for _ in askers:
        window.release()
        assert wait_until(lambda: any(a.waited and a not in order for a in askers))
        order.extend(a for a in askers if a.waited and a not in order)
    assert [askers.index(a) for a in order] == [2, 3, 0, 1]


def test_a_newcomer_does_not_overtake_those_who_wait():
    window = Window(1)
    window.acquire()
    first = asking(window)
    second = asking(window)
    window.release()
    first.join(10)
    assert first.waited is True and second.waited is None
    third = asking(window)
    window.release()
    second.join(10)
    assert second.waited is True and third.waited is None
    window.release()
    third.join(10)


def test_a_larger_limit_serves_those_who_wait_and_a_smaller_one_takes_nothing_back():
    window = Window(1)
    window.acquire()
    askers = [asking(window) for _ in range(3)]
    window.resize(3)
    assert wait_until(lambda: window.inflight == 3)
    window.resize(1)
    assert window.inflight == 3 and waiting(window) == 1
    window.release()
    window.release()
    time.sleep(0.02)
    assert window.inflight == 1 and waiting(window) == 1
    window.release()
    assert wait_until(lambda: all(asker.waited for asker in askers))


def test_a_refused_requests_slot_stays_closed_until_the_next_tick():
    window = Window(3)
    window.acquire()
    window.refuse()
    window.release()
    window.acquire()
    window.acquire()
    asker = asking(window)
    assert window.inflight == 2
    window.resize(3)
    asker.join(10)
    assert asker.waited is True and window.inflight == 3


def test_when_every_slot_was_refused_one_is_served_until_the_next_tick():
    window = Window(3)
    for _ in range(5):
        window.refuse()
    assert window.acquire() is False
    askers = [asking(window, retry) for retry in (False, True)]
    assert window.inflight == 1
    window.resize(3)
    for asker in askers:
        asker.join(10)
    assert window.inflight == 3


def test_a_failed_window_releases_its_waiters_and_refuses_later_ones():
    window = Window(1)
    window.acquire()
    askers = [asking(window), asking(window, retry=True)]
    window.fail("controller loop died: oops")
    for asker in askers:
        asker.join(10)
        assert isinstance(asker.waited, FatalTransportError) and "oops" in str(asker.waited)
    with pytest.raises(FatalTransportError, match="controller loop died: oops"):
        window.acquire()
    window.release()
    assert window.inflight == 0


def test_cancel_releases_the_named_threads_alone():
    window = Window(1)
    window.acquire()
    one, other = asking(window), asking(window)
    window.cancel({one.ident, 12345})
    one.join(10)
    assert isinstance(one.waited, Interrupted) and other.is_alive()
    window.release()
    other.join(10)
    assert other.waited is True and window.inflight == 1


class Pressed(Exception):
    pass


def test_an_interrupt_while_waiting_leaves_the_queue():
    """Ctrl-C arrives in the main thread, in the middle of `acquire`."""

    def pressed(number, frame):
        raise Pressed

    window = Window(1)
    window.acquire()
    before = signal.signal(signal.SIGALRM, pressed)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Pressed):
            window.acquire()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert waiting(window) == 0
    window.release()
    assert window.inflight == 0 and window.acquire() is False


def test_under_any_mix_of_threads_and_resizes_no_slot_is_lost_and_no_limit_overrun():
    """Forty threads, a limit that jumps about, refusals and cancellations; then everything is given back."""
    draw = random.Random(7)
    window = Window(8)
    highest, given, stop = 40, [0], threading.Event()
    lock = threading.Lock()
    overrun: list[int] = []

    def worker(seed: int) -> None:
        mine = random.Random(seed)
        while not stop.is_set():
            try:
                window.acquire(retry=mine.random() < 0.3)
            except Interrupted:
                continue
            try:
                if window.inflight > highest:
                    overrun.append(window.inflight)
                with lock:
                    given[0] += 1
                if mine.random() < 0.1:
                    time.sleep(0.0005)
                if mine.random() < 0.05:
                    window.refuse()
            finally:
                window.release()

    threads = [threading.Thread(target=worker, args=(i,), daemon=True) for i in range(40)]
    for thread in threads:
        thread.start()
    for _ in range(150):
        window.resize(draw.choice([1, 2, 8, highest]))
        if draw.random() < 0.3:
            window.cancel({draw.choice(threads).ident})
        time.sleep(0.002)
    before = given[0]
    window.resize(8)
    assert wait_until(lambda: given[0] > before), "no lost wake-up: there is still traffic"
    stop.set()

    def all_gone() -> bool:
        window.resize(8)
        return not any(thread.is_alive() for thread in threads)

    assert wait_until(all_gone)
    assert (window.inflight, waiting(window), overrun) == (0, 0, [])


def test_a_fixed_limit_is_never_exceeded_by_however_many_threads():
    window = Window(3)
    now, most, lock = [0], [0], threading.Lock()

    def worker() -> None:
        for _ in range(200):
            window.acquire()
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= 1
            window.release()

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 3 and window.inflight == 0
