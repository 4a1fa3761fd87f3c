"""pump(): the stages wired together. Rows, the adaptive middle, a sink; run it again and it resumes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from saturate.agent import agent_mode
from saturate.drain import Stats, drain
from saturate.flow.client import DEFAULT_ROUTE, AdaptiveClient
from saturate.flow.monitor import Controller
from saturate.flow.pacer import Pace
from saturate.flow.through import Parse, ToRequest, through
from saturate.http.retry import MAX_RETRY_AFTER_S
from saturate.interrupts import Interrupts
from saturate.report.advisor import advise
from saturate.report.console import speak_on_stderr
from saturate.report.progress import Progress
from saturate.report.receipt import receipt
from saturate.rows.select import skip_done
from saturate.rows.stream import IdFn, check_shard, stream
from saturate.sinks import ParquetSink

log = logging.getLogger("saturate")


def pump(
    rows: Iterable[Any],
    to_request: ToRequest,
    parse: Parse,
    endpoint: str,
    output: Any,
    window: Optional[Controller] = None,
    shard: tuple[int, int] = (0, 1),
    flush_every: Optional[int] = None,
    read_timeout: float = 1800.0,
    route: str = DEFAULT_ROUTE,
    headers: Optional[Mapping[str, str]] = None,
    retry_errors: bool = False,
    id_key: Optional[str] = None,
    id_fn: Optional[IdFn] = None,
    signal_source: str = "auto",
    schema: Any = None,
    prepare_workers: int = 0,
    *,
    pace: Optional[Pace] = None,
    max_retry_after: float = MAX_RETRY_AFTER_S,
    max_bytes_in_flight: Optional[int] = None,
) -> Stats:
    """Every row through the model behind `endpoint`, landed in `output`. Run the same call again to resume.

    rows: an iterable of dicts or of `(id, dict)` tuples, read lazily and once.
    to_request: row -> JSON body (a dict), a Request, or None for an empty POST. Called in several threads.
    parse: `(row, response) -> dict` of columns, or a function of the response alone. Called in several threads.
    endpoint: base URL such as "http://localhost:8000/v1".
    output: where the parquet goes (a path, or any fsspec URL), or a sink object.
    window: `Auto()` (default) finds the number of requests in flight; `Fixed(n)` sets it.
    shard: `(rank, world)`: a label for this run's markers and telemetry. It does NOT select input: pass each shard
    its own rows, such as `shard_select(stream(rows), rank, world)`.
    flush_every: rows per parquet file; by default files are cut by rows, bytes and seconds (see ParquetSink).
    read_timeout: seconds of silence from the server, first attempt or retry, that count as no answer.
    route: appended to the endpoint, for requests without a route of their own.
    headers: sent with every request, such as {"Authorization": "Bearer ..."}.
    retry_errors: send rows again of which the output holds only an error.
    id_key: the column that identifies a row; id_fn: a function row -> id, which wins over id_key. Without either
    the id is a hash of the row's content (`content_id`).
    signal_source: "auto" reads the engine's /metrics when there, "none" never does.
    schema: a pyarrow schema that every file is cast to; by default types are found and then kept.
    prepare_workers: for a slow to_request: how many workers build requests ahead of the window.
    pace: a quota to keep to, such as Pace(requests_per_minute=600, tokens_per_minute=90_000). One that the server
    tells, by headers or by Retry-After, is found without it.
    max_retry_after: seconds that one row waits, in all, because servers asked it to with Retry-After.
    max_bytes_in_flight: bytes of request bodies on the wire at once; an eighth of this machine's memory by default.

    A row that cannot be done (its request refused for good, to_request or parse raised, its result not storable)
    becomes an error row and never ends the run. Returns the run's Stats.

    Raises TypeError or ValueError at the call for arguments that cannot work; while running, whatever the rows'
    iterator raised, FatalTransportError when the endpoint stayed down for ten minutes, and what the sink raised. On
    any of these, and on Ctrl-C and SIGTERM (exit status 143), everything answered is stored first.
    """
    speak_on_stderr()
    rank, world = check_shard(shard)
    stats = Stats()
    progress = Progress(stats)
    telemetry: Optional[_Telemetry] = None

    def on_tick(tick: dict[str, Any]) -> None:
        progress(tick)
        if telemetry is not None:
            telemetry.tick(tick)

    client = AdaptiveClient(
        endpoint,
        window,
        headers,
        read_timeout,
        signal_source,
        on_tick,
        pace=pace,
        max_retry_after=max_retry_after,
        max_bytes_in_flight=max_bytes_in_flight,
    )
    pairs = stream(rows, id_key=id_key, id_fn=id_fn)
    sink, owned = _sink(output, flush_every, schema)
    todo = skip_done(pairs, sink, retry_errors=retry_errors, stats=stats)
    results = through(client, todo, to_request, parse, route=route, prepare_workers=prepare_workers)
    if world > 1:
        log.info("shard %d of %d: the input must already be this shard's share (shard_select)", rank, world)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        if owned:
            stack.enter_context(sink)
        stack.enter_context(Interrupts())
        if hasattr(sink, "begin_run"):
            sink.begin_run(shard)
        telemetry = _Telemetry(sink, shard)
        with client:
            drain(results, sink, shard, stats)
        stats.elapsed_s = round(time.monotonic() - started, 2)
        _fill(stats, client, prepare_workers)
        telemetry.write()
        for hint in stats.hints:
            log.info("advisor: %s", hint)
        _write_stats(sink, shard, stats)
        if hasattr(sink, "write_marker"):
            sink.write_marker(shard)
    log.info(
        "done: %d ok, %d failed, %s tok/s, window settled at %d",
        stats.rows_processed,
        stats.rows_failed,
        stats.tokens_per_sec,
        stats.final_limit,
    )
    if agent_mode():
        print(stats.to_json(), flush=True)
        log.info("running the same command again resumes, and is always safe")
    return stats


def _sink(output: Any, flush_every: Optional[int], schema: Any) -> tuple[Any, bool]:
    """(sink, whether it is ours to close) for what pump() was given as output."""
    if isinstance(output, (str, os.PathLike)):
        return ParquetSink(output, flush_every, schema), True
    if schema is not None:
        raise ValueError("schema= belongs to the sink when output is one: ParquetSink(path, schema=...)")
    for name in ("append", "flush", "existing_ids"):
        if not callable(getattr(output, name, None)):
            raise TypeError(
                f"output must be a path, a URL or a sink with append, flush and existing_ids; "
                f"this {type(output).__name__} has no {name}"
            )
    return output, False


class _Telemetry:
    """Keeps the ticks' lines and has the sink rewrite its file now and then: rarely, and ever more rarely."""

    def __init__(self, sink: Any, shard: tuple[int, int]):
        self._sink = sink
        self._shard = shard
        self._lines: list[str] = []
        self._written = 0
        self._every = int(getattr(sink, "telemetry_every_ticks", 30))
        self._lock = threading.Lock()

    def tick(self, record: dict[str, Any]) -> None:
        self._lines.append(json.dumps(record))
        # The whole file is rewritten each time, so the pause grows with it: a quarter of the run so far.
        if len(self._lines) - self._written >= max(self._every, len(self._lines) // 4):
            threading.Thread(target=self.write, name="saturate-telemetry", daemon=True).start()

    def write(self) -> None:
        """Rewrites the file; a failure is logged, since telemetry must never end a run."""
        with self._lock:
            if not self._lines or not hasattr(self._sink, "write_telemetry"):
                return
            self._written = len(self._lines)
            try:
                self._sink.write_telemetry(self._shard, self._lines[: self._written])
            except Exception as exc:
                log.warning("telemetry not written: %s: %s", type(exc).__name__, exc)


def _fill(stats: Stats, client: AdaptiveClient, prepare_workers: int) -> None:
    ticks = client.limiter.ticks
    stats.final_limit = client.limiter.window.limit
    stats.breaker_opens = client.breaker.opens
    stats.input_bound = any(tick["input_bound"] for tick in ticks)
    stats.cut_reasons = dict(Counter(tick["reason"] for tick in ticks if tick["reason"].startswith("cut:")))
    stats.bound_by = dict(Counter(tick["bound_by"] for tick in ticks if tick["bound_by"]))
    said = receipt(ticks, stats.final_limit)
    stats.hints = [said] if said else []
    stats.hints += advise(ticks, stats.final_limit, client.dialect, prepare_workers)


def _write_stats(sink: Any, shard: tuple[int, int], stats: Stats) -> None:
    if not hasattr(sink, "write_stats"):
        return
    try:
        sink.write_stats(shard, stats.to_json())
    except Exception as exc:
        log.warning("stats not written: %s: %s", type(exc).__name__, exc)
