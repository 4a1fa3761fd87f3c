"""Rows in, `Done` out, in completion order: `for done in through(client, rows, to_request, parse)`.

Memory is bounded by the window, not by the rows: at most about twice the window of rows is between the source
and the caller. A slow caller stops admission; a slow source never delays a request that could be sent.

Invariants: every row that was admitted comes out exactly once, as a result or an error, unless the loop is left
or the run dies; leaving it by any way ends its threads and closes their connections. With `deliver_to`, a request
thread delivers a result before it takes the next row: what is on the wire and what is not yet delivered are together
no more rows than there are request threads, as many as the window has slots.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Callable, Optional, Union

from saturate.flow.client import DEFAULT_ROUTE, usage_of
from saturate.flow.pool import RequestPool
from saturate.flow.queues import BoundedQueue
from saturate.flow.stopwatch import Stopwatch
from saturate.http.errors import FatalTransportError, Interrupted
from saturate.http.request import check_route

log = logging.getLogger("saturate")

AHEAD = 4
"""Requests built before there is a slot for them, at least; `prepare_workers` raises it."""

OFF_WIRE_SHARE = 0.03
"""When a row's own work (to_request, parse) takes less than this share of its time, threads that build ahead gain
nothing, and cost a thread switch for every row."""

OFF_WIRE_SHARE_DELIVERING = 0.1
"""With `deliver_to` each such thread is also one more row that a kill may cost, so they must be of more use."""

SLOW_DELIVERY_S = 0.005
"""A delivery that took longer has waited for the sink, which then counts as the stage that holds the run back."""

LINGER_S = 0.002
"""A caller that is faster than the results sleeps this long before it waits for the next, so that results that come
thick are taken several at a wake-up: a wake-up costs more than a row."""

RESULTS_AT_LEAST = 64

LEAVE_WITHIN_S = 1.5
"""How long leaving the loop waits for its threads; one that is stuck in the user's own code is left behind."""

_NO_MORE: Any = object()

Row = dict[str, Any]
ToRequest = Callable[[Row], Any]
Parse = Callable[..., Any]


@dataclass
class Done:
    """One row's end. `out` is what parse returned, or None and then `error` says why; `usage` is the response's."""

    id: str
    row: Row
    out: Optional[dict[str, Any]]
    error: Optional[str]
    usage: dict[str, Any] = field(default_factory=dict)


class _End:
    """The mark after the last item of a queue; `failure` is what ended the run, if anything did."""

    __slots__ = ("failure",)

    def __init__(self, failure: Optional[BaseException] = None):
        self.failure = failure


def through(
    client: Any,
    rows: Iterable[tuple[str, Row]],
    to_request: ToRequest,
    parse: Parse,
    route: str = DEFAULT_ROUTE,
    prepare_workers: int = 0,
) -> Through:
    """Sends every `(id, row)` of `rows` through `client` and iterates over `Done`s in completion order.

    to_request(row) gives the request: a dict (the JSON body), a Request, or None for an empty POST.
    parse(row, response) gives a dict of columns; a function of one argument gets the response alone. Both are
    called in the request threads, several at once. What they raise becomes that row's error
    (`client: <Type>: <message>`), never the run's.
    client: an AdaptiveClient, or any object with `post(request, route) -> (body, error)` and
    `limiter.window.limit`. route: where a request without a route of its own goes. prepare_workers: for a slow
    to_request: up to twice as many requests are built ahead of the window (4 by default).

    Raises at the call for arguments that cannot work. While iterating: what the source raised, after the rows
    before it were served; FatalTransportError when the endpoint is down for good.

    Leaving the loop early, by break, exception or Ctrl-C, ends its threads; `close()` or `with` do it by hand.
    """
    if not callable(getattr(client, "post", None)) or getattr(client, "limiter", None) is None:
        raise TypeError(f"client must be an AdaptiveClient (or have .post and .limiter), got {type(client).__name__}")
    if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
        raise TypeError(f"rows must be an iterable of (id, row) tuples, such as stream(...), got {type(rows).__name__}")
    if not callable(to_request):
        raise TypeError(f"to_request must be a function row -> request, got {type(to_request).__name__}")
    if isinstance(prepare_workers, bool) or not isinstance(prepare_workers, int) or prepare_workers < 0:
        raise ValueError(f"prepare_workers must be an int >= 0, got {prepare_workers!r}")
    return Through(_Run(client, rows, to_request, _parser(parse), check_route(route), prepare_workers))


def _parser(parse: Parse) -> Callable[[Row, Any], Any]:
    """`parse` as a function of row and response, whichever of its two forms it has."""
    if not callable(parse):
        raise TypeError(f"parse must be a function (row, response) -> dict, got {type(parse).__name__}")
    try:
        parameters = inspect.signature(parse).parameters.values()
    except (TypeError, ValueError):
        raise ValueError(
            f"parse {parse!r} has no readable signature; wrap it in a function (row, response) -> dict"
        ) from None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        return lambda row, response: parse(response)
    return parse


class Through(Iterator[Done]):
    """The iterator that `through` returns. Threads start at the first `next()`.

    `grace_s` (0 by default) is how long requests on the wire may still be answered when a `next()` is interrupted.
    """

    def __init__(self, run: _Run):
        self.grace_s = 0.0
        self._run = run
        self._finished = False
        self._left: deque[Done] = deque()
        self._failure: Optional[BaseException] = None

    def __iter__(self) -> Through:
        return self

    def __next__(self) -> Done:
        if not self._finished:
            try:
                item = self._run.next()
            except BaseException:
                self._end(self.grace_s)
                raise
            if isinstance(item, Done):
                return item
            # A run that died may still have answers that are paid for: they come out before the failure does.
            self._failure = item.failure
            self._end(0.0)
        if self._left and self._failure is not None:
            return self._left.popleft()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        raise StopIteration

    def deliver_to(self, take: Callable[[Done], None]) -> None:
        """From now on each result goes to `take`, in the request thread that got it, and `next()` only waits for the
        end. `take` is called by several threads at once; what it raises ends the run, and `next()` raises it.

        Call it before the first `next()`.
        """
        self._run.deliver_to(take)

    def halt(self, grace_s: float = 0.0) -> list[Done]:
        """Ends the run and returns what was answered but not yet handed out, so that it can be stored.

        Admission stops at once; requests on the wire get `grace_s` seconds to be answered, then their
        connections are closed.
        """
        self._end(grace_s)
        left, self._left = list(self._left), deque()
        return left

    def close(self) -> None:
        """Ends the run: no thread and no connection of it is left. Results not yet handed out are dropped."""
        self.halt()

    def _end(self, grace_s: float) -> None:
        if not self._finished:
            self._finished = True
            self._left.extend(self._run.stop(grace_s))

    def __enter__(self) -> Through:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], exc: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Run:
    """What the threads of one loop share. They hold this, never the iterator, so that dropping that ends the loop."""

    def __init__(
        self,
        client: Any,
        rows: Iterable[tuple[str, Row]],
        to_request: ToRequest,
        parse: Callable[[Row, Any], Any],
        route: str,
        prepare_workers: int,
    ):
        self._client = client
        self._limiter = client.limiter
        self._source: Optional[Iterable[tuple[str, Row]]] = rows
        self._to_request = to_request
        self._parse = parse
        self._route = route
        self._ahead = max(2 * prepare_workers, AHEAD)
        self._stopping = False
        self._source_thread: Optional[threading.Thread] = None
        self._source_failure: Optional[BaseException] = None
        self._source_watch: Stopwatch = getattr(self._limiter, "source", None) or Stopwatch()
        self._note_prep = getattr(self._limiter, "note_prep", None)
        self._deliver: Optional[Callable[[Done], None]] = None
        self._delivery_watch: Stopwatch = getattr(self._limiter, "consumer", None) or Stopwatch()
        self._rows: BoundedQueue[Union[tuple[str, Row], _End]] = BoundedQueue(1)
        self._results: BoundedQueue[Union[Done, _End]] = BoundedQueue(1, getattr(self._limiter, "consumer", None))
        self._taken_at = 0.0
        # Seconds that rows took in all and off the wire; unlocked sums, since only their ratio matters.
        self._row_s = self._off_wire_s = 0.0
        self._pool = RequestPool(self._work, self._rows.__len__, self._all_done)
        if hasattr(self._limiter, "prep_workers"):
            self._limiter.prep_workers = prepare_workers

    def deliver_to(self, take: Callable[[Done], None]) -> None:
        self._deliver = take

    def next(self) -> Union[Done, _End]:
        """The next result, or the end."""
        if self._source_thread is None:
            self._start()
        item = self._results.get_now()
        if item is None:
            now = time.monotonic()
            if now - self._taken_at < LINGER_S:
                time.sleep(LINGER_S)
            item = self._results.get()
            self._taken_at = time.monotonic()
        return item

    def _start(self) -> None:
        self._follow(self._limiter.window.limit)
        if hasattr(self._limiter, "subscribe"):
            self._limiter.subscribe(self._follow)
        self._source_thread = threading.Thread(target=self._read_source, name="saturate-source", daemon=True)
        self._source_thread.start()

    def _follow(self, limit: int) -> None:
        """The window changed: as many threads, and queues as long as it takes to feed them."""
        self._rows.bound = max(AHEAD, limit // 2)
        self._results.bound = max(RESULTS_AT_LEAST, limit)
        parked = getattr(self._limiter, "parked_threads", 0)
        self._pool.resize(limit + self._ahead_now() + min(parked, limit + AHEAD))

    def _ahead_now(self) -> int:
        off_wire, row_s = self._off_wire_s, self._row_s
        self._off_wire_s = self._row_s = 0.0
        if self._ahead > AHEAD:
            return self._ahead
        if self._deliver is not None:
            return AHEAD if row_s and off_wire >= OFF_WIRE_SHARE_DELIVERING * row_s else 0
        return AHEAD if not row_s or off_wire >= OFF_WIRE_SHARE * row_s else 0

    # -- the source thread

    def _read_source(self) -> None:
        watch = self._source_watch
        try:
            source = iter(self._source or ())
            self._source = None
            while not self._stopping:
                watch.start()
                try:
                    pair = next(source, _NO_MORE)
                finally:
                    watch.stop()
                if pair is _NO_MORE:
                    break
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise TypeError(
                        f"rows must be (id, row) tuples, got a {type(pair).__name__}; wrap them: stream(rows)"
                    )
                self._rows.put_over(pair)
                if len(self._rows) and self._pool.size < self._pool.target:
                    self._pool.grow()
                self._rows.wait_for_room()
        except BaseException as exc:
            self._source_failure = exc
        finally:
            self._rows.put_over(_End())
            self._pool.end()

    # -- the request threads

    def _work(self) -> None:
        try:
            while not self._pool.excess():
                item = self._rows.get()
                if isinstance(item, _End) or self._stopping:
                    # Every thread must see the end: pass it on.
                    self._rows.put_over(_End())
                    return
                done = self._serve(*item)
                if self._deliver is None:
                    self._results.put(done)
                else:
                    self._hand_over(done, self._deliver)
        except Interrupted:
            return
        except BaseException as exc:
            # FatalTransportError, or a fault of ours: either way the run is over and the caller must know.
            self._results.put_over(_End(exc))
        finally:
            retire = getattr(self._client, "retire", None)
            if retire is not None:
                retire()

    def _hand_over(self, done: Done, deliver: Callable[[Done], None]) -> None:
        started = time.perf_counter()
        deliver(done)
        took = time.perf_counter() - started
        if took > SLOW_DELIVERY_S:
            # The other threads wait for the same sink at the same time.
            self._delivery_watch.add(took / max(1, self._pool.size))

    def _serve(self, row_id: str, row: Row) -> Done:
        try:
            started = time.perf_counter()
            request = self._to_request(row)
            built = time.perf_counter()
            if self._note_prep is not None:
                self._note_prep(built - started)
            body, error = self._client.post(request, self._route)
            if error is not None:
                return Done(row_id, row, None, error)
            answered = time.perf_counter()
            out = self._parse(row, body)
            ended = time.perf_counter()
            self._row_s += ended - started
            self._off_wire_s += (built - started) + (ended - answered)
            if not isinstance(out, dict):
                raise TypeError(f"parse must return a dict, got {type(out).__name__}")
            return Done(row_id, row, out, None, usage_of(body))
        except (Interrupted, FatalTransportError):
            raise
        except Exception as exc:
            return Done(row_id, row, None, f"client: {type(exc).__name__}: {exc}")

    def _all_done(self) -> None:
        self._results.put_over(_End(self._source_failure))

    # -- the end

    def stop(self, grace_s: float) -> list[Done]:
        """Ends all threads; returns the results that nobody took. Safe to call again."""
        self._stopping = True
        self._source = None
        if self._source_thread is None:
            return []
        if hasattr(self._limiter, "unsubscribe"):
            self._limiter.unsubscribe(self._follow)
        self._rows.open_up()
        self._results.open_up()
        while self._rows.get_now() is not None:
            pass
        self._rows.put_over(_End())
        if self._pool.has_current_thread():
            # The garbage collector ended the loop from inside one of its own threads: it cannot wait for itself.
            return []
        self._wait_for_pool(time.monotonic() + grace_s)
        interrupt = getattr(self._client, "interrupt", None)
        deadline = time.monotonic() + LEAVE_WITHIN_S
        while self._pool.size and time.monotonic() < deadline:
            # Again and again, since a thread may have been on its way into its next wait.
            if interrupt is not None:
                interrupt(self._pool.idents())
            self._wait_for_pool(min(deadline, time.monotonic() + 0.05))
        self._source_thread.join(timeout=0.2)
        if self._pool.size:
            log.warning("%d request threads are still in to_request or parse; not waiting for them", self._pool.size)
        left: list[Done] = []
        while (item := self._results.get_now()) is not None:
            if isinstance(item, Done):
                left.append(item)
        # For a `next()` that another thread is in.
        self._results.put_over(_End())
        return left

    def _wait_for_pool(self, until: float) -> None:
        self._pool.wait_empty(max(0.0, until - time.monotonic()))
