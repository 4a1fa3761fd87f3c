"""Ctrl-C and SIGTERM end a run at a point where no record is half handed over; a second one never waits."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from saturate.interrupts import Interrupts


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_is_raised_at_once_when_nothing_is_held(number, kind):
    with Interrupts(), pytest.raises(kind):
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 1)


def test_a_signal_waits_while_a_record_is_handed_over():
    handed_over = []
    with Interrupts() as interrupts:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGINT)
        handed_over.append("whole")
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()
        interrupts.release()
    assert handed_over == ["whole"]


def test_the_second_signal_does_not_wait():
    with Interrupts() as interrupts:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 1)


def test_the_users_handlers_come_back():
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_was_ignored_stays_ignored():
    """nohup, or a shell's background job."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_nothing_is_done():
    seen = []

    def elsewhere():
        with Interrupts() as interrupts:
            interrupts.hold()
            interrupts.release()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
