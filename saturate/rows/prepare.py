"""Work on rows ahead of the model: a bounded number of calls in flight, the order of rows kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Callable, Optional

from saturate.rows.stream import IdRow, Row, _require_rows


def prepare_ahead(
    rows: Iterable[IdRow], fn: Callable[[Row], Any], workers: int = 4, executor: Optional[Executor] = None
) -> Iterator[tuple[str, Any]]:
    """`(id, fn(row))` for each `(id, row)`, in order, with at most `workers` calls of `fn` in flight.

    The calls run in a thread pool of this function's own, or in `executor`, which is the caller's to
    shut down (with a process pool `fn` and the rows must pickle). An exception of `fn` is raised when
    its row's turn comes. Time spent waiting here shows as source time in telemetry.

    Raises ValueError at the call unless `workers` is at least 1.
    """
    _require_rows(rows)
    if not callable(fn):
        raise TypeError(f"fn must be a function row -> value, got {type(fn).__name__}")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be an int >= 1, got {workers!r}")
    return _prepare_ahead(rows, fn, workers, executor)


def _prepare_ahead(
    rows: Iterable[IdRow], fn: Callable[[Row], Any], workers: int, executor: Optional[Executor]
) -> Iterator[tuple[str, Any]]:
    pool = executor if executor is not None else ThreadPoolExecutor(workers, thread_name_prefix="saturate-prepare")
    ahead: deque[tuple[str, Future[Any]]] = deque()
    try:
        for row_id, row in rows:
            ahead.append((row_id, pool.submit(fn, row)))
            if len(ahead) >= workers:
                done_id, future = ahead.popleft()
                yield done_id, future.result()
        while ahead:
            done_id, future = ahead.popleft()
            yield done_id, future.result()
    finally:
        for _, future in ahead:
            future.cancel()
        if executor is None:
            pool.shutdown(wait=False)
