"""Work done by several threads and handed out in order. One thread means no thread, unless asked for: it is done
where its result is due.

The C core releases the GIL, so threads use the cores. Each job gets a `Work` area that is its own until the consumer
has taken the next result: memory is bounded by the number of areas, whatever the number of jobs.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Callable, Optional, TypeVar

from shuflr import core

if TYPE_CHECKING:  # loaded when the first thread starts: a command that needs none starts sooner
    import queue
    import threading

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(
    jobs: Iterable[Job],
    task: Callable[[Job, core.Work], Result],
    threads: int,
    ahead: int = 2,
    threaded: bool = False,
) -> Iterator[Result]:
    """task(job, work) for each job, results in the order of the jobs.

    threads: how many run at once. ahead: how many finished results may wait beyond those. A result that is a view
    into its work area is valid until the next is asked for. The first failure is raised where its result was due.
    threaded: even one thread is a thread, so that the caller's own reading and writing overlaps with it."""
    if threads <= 1 and not threaded:
        work = core.Work()
        for job in jobs:
            yield task(job, work)
        return
    yield from _threaded(jobs, task, threads, ahead)


class _Slot:
    """One job on its way: filled by a worker, awaited by the consumer."""

    __slots__ = ("done", "error", "job", "result", "work")

    def __init__(self, job: object, work: core.Work, done: "threading.Event") -> None:
        self.job = job
        self.work = work
        self.done = done
        self.result: object = None
        self.error: Optional[BaseException] = None


def _serve(inbox: "queue.SimpleQueue[Optional[_Slot]]", task: "Callable[..., object]") -> None:
    while True:
        slot = inbox.get()
        if slot is None:
            return
        try:
            slot.result = task(slot.job, slot.work)
        except BaseException as error:  # raised again by the consumer, in its turn
            slot.error = error
        slot.done.set()


def _threaded(
    jobs: Iterable[Job], task: Callable[[Job, core.Work], Result], threads: int, ahead: int
) -> Iterator[Result]:
    import queue
    import threading

    inbox: queue.SimpleQueue[Optional[_Slot]] = queue.SimpleQueue()
    free = [core.Work() for _ in range(threads + ahead)]
    crew = [threading.Thread(target=_serve, args=(inbox, task), daemon=True) for _ in range(threads)]
    for thread in crew:
        thread.start()
    waiting: list[_Slot] = []
    pending = iter(jobs)
    more = True
    try:
        while more or waiting:
            while more and free:
                try:
                    slot = _Slot(next(pending), free.pop(), threading.Event())
                except StopIteration:
                    more = False
                    break
                waiting.append(slot)
                inbox.put(slot)
            if not waiting:
                break
            slot = waiting.pop(0)
            slot.done.wait()
            if slot.error is not None:
                raise slot.error
            yield slot.result  # type: ignore[misc]
            free.append(slot.work)
    finally:
        for _ in crew:
            inbox.put(None)
        for thread in crew:
            thread.join()
