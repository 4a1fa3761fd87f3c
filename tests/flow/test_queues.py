"""The bounded queues: a full one blocks its writers until it is half empty, and no wake-up is ever lost."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest

from saturate.flow.queues import BoundedQueue
from saturate.flow.stopwatch import Stopwatch
from tests.conftest import wait_until


def put_all(queue: BoundedQueue, items: list) -> threading.Thread:
    def put() -> None:
        for item in items:
            queue.put(item)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    return thread


def test_first_in_first_out():
    queue: BoundedQueue[int] = BoundedQueue(100)
    for i in range(50):
        queue.put(i)
    assert len(queue) == 50
    assert [queue.get() for _ in range(50)] == list(range(50))
    assert queue.get_now() is None


def test_a_full_queue_blocks_its_writer_until_it_is_half_empty():
    queue: BoundedQueue[int] = BoundedQueue(8)
    writer = put_all(queue, list(range(20)))
    assert wait_until(lambda: len(queue) == 8 and queue._waiting == 1)
    for left in (7, 6, 5):
        queue.get()
        assert len(queue) == left
    time.sleep(0.02)
    assert len(queue) == 5, "still more than half full"
    queue.get()
    assert wait_until(lambda: len(queue) == 8)
    queue.open_up()
    writer.join(10)
    assert len(queue) == 16


def test_a_mark_is_put_over_the_bound_without_waiting():
    queue: BoundedQueue[int] = BoundedQueue(1)
    queue.put_over(1)
    queue.put_over(2)
    queue.put_over(3)
    assert len(queue) == 3


def test_an_opened_queue_never_blocks_again():
    queue: BoundedQueue[int] = BoundedQueue(2)
    writers = [put_all(queue, list(range(50))) for _ in range(3)]
    assert wait_until(lambda: queue._waiting == 3)
    queue.open_up()
    for writer in writers:
        writer.join(10)
        assert not writer.is_alive()
    assert len(queue) == 150


def test_a_reader_blocks_until_there_is_an_item():
    queue: BoundedQueue[int] = BoundedQueue(2)
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(queue.get()), daemon=True)
    reader.start()
    time.sleep(0.02)
    assert got == []
    queue.put(7)
    reader.join(10)
    assert got == [7]


def test_time_spent_full_is_counted_while_it_lasts():
    full = Stopwatch()
    queue: BoundedQueue[int] = BoundedQueue(1, full)
    assert full.take() == 0
    writer = put_all(queue, [1])
    assert wait_until(lambda: full.take() > 0)
    queue.get()
    writer.join(10)
    full.take()
    time.sleep(0.01)
    assert full.take() == 0


@pytest.mark.parametrize("bound", [1, 2, 3, 16])
def test_under_stress_every_item_comes_out_once_and_nobody_is_left_asleep(bound):
    """Threads are switched as often as Python can: a lost wake-up would leave this hanging."""
    queue: BoundedQueue[tuple[int, int]] = BoundedQueue(bound)
    writers = [put_all(queue, [(w, i) for i in range(1500)]) for w in range(4)]
    got: list[list[tuple[int, int]]] = [[] for _ in range(3)]

    def read(mine: list[tuple[int, int]]) -> None:
        while True:
            item = queue.get()
            if item[0] < 0:
                return
            mine.append(item)

    readers = [threading.Thread(target=read, args=(mine,), daemon=True) for mine in got]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for reader in readers:
            reader.start()
        for writer in writers:
            writer.join(60)
            assert not writer.is_alive()
        for _ in readers:
            queue.put_over((-1, 0))
        for reader in readers:
            reader.join(60)
            assert not reader.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(item for mine in got for item in mine) == [(w, i) for w in range(4) for i in range(1500)]
    for mine in got:
        for w in range(4):
            assert [i for who, i in mine if who == w] == sorted(i for who, i in mine if who == w)


def test_a_bound_that_changes_under_use_holds_its_writers_and_loses_none():
    draw = random.Random(3)
    queue: BoundedQueue[tuple[int, int]] = BoundedQueue(4)
    writers = [put_all(queue, [(w, i) for i in range(400)]) for w in range(4)]
    got = []
    for turn in range(1600):
        if turn % 10 == 0:
            queue.bound = draw.choice([1, 2, 7, 30])
        got.append(queue.get())
        # Each writer may overshoot by one item, and by what a larger bound had let in.
        assert len(queue) <= 30 + 4
    for writer in writers:
        writer.join(10)
        assert not writer.is_alive()
    assert len(set(got)) == 1600
