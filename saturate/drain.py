"""Results land: `drain` moves every Done into a sink and counts. `Stats` is what a run has to say for itself."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from saturate.flow.client import token_count
from saturate.flow.through import Done, Through
from saturate.interrupts import Interrupts
from saturate.sinks.parquet import INTERRUPTED_S, ParquetSink

log = logging.getLogger("saturate")

INTERRUPT_GRACE_S = 0.5
"""On Ctrl-C, how long requests on the wire may still be answered: paid for, so worth a moment."""


@dataclass
class Stats:
    """Counts of a run; the keys are the contract's (CONTRACT.md, "Markers and stats").

    rows_total: rows seen from the source. rows_done_prior: of them, stored by an earlier run.
    rows_processed: stored as results now. rows_failed: stored as errors now. rows_deduped: repeats within the
    run. prompt_tokens, completion_tokens: from the responses' usage. elapsed_s: seconds. final_limit: the window
    at the end. input_bound: whether the source or to_request ever starved the window. breaker_opens: how often the
    endpoint was found dead. hints: what held the run back and one change that would help. cut_reasons: reason ->
    times the window was cut for it. bound_by: stage -> ticks that it held back.
    """

    rows_total: int = 0
    rows_done_prior: int = 0
    rows_processed: int = 0
    rows_failed: int = 0
    rows_deduped: int = 0
    prompt_tokens: float = 0
    completion_tokens: float = 0
    elapsed_s: float = 0.0
    final_limit: int = 0
    input_bound: bool = False
    breaker_opens: int = 0
    hints: list[str] = field(default_factory=list)
    cut_reasons: dict[str, int] = field(default_factory=dict)
    bound_by: dict[str, int] = field(default_factory=dict)

    @property
    def tokens_per_sec(self) -> float:
        """Prompt and completion tokens a second, to one decimal; 0.0 for a run of no length."""
        if not self.elapsed_s:
            return 0.0
        return round((self.prompt_tokens + self.completion_tokens) / self.elapsed_s, 1)

    def to_json(self) -> str:
        """All fields in order, then tokens_per_sec, as JSON text."""
        return json.dumps({**asdict(self), "tokens_per_sec": self.tokens_per_sec})


def drain(results: Iterable[Done], sink: Any, shard: tuple[int, int] = (0, 1), stats: Optional[Stats] = None) -> Stats:
    """Appends every Done of `results` to `sink`, flushes it, and returns the counts (into `stats` if given).

    A row that the sink cannot store is counted as failed; its tokens were paid for and count. When the loop is
    interrupted or fails, what was answered until then is landed and flushed before the exception goes on; a second
    interrupt goes on at once. `shard` is a label for log lines.

    Into a ParquetSink the request threads land their results themselves: a row is in the journal before its thread
    sends another, so a kill pays again for no more rows than the window has slots.
    """
    counts = stats if stats is not None else Stats()
    if hasattr(results, "grace_s"):
        results.grace_s = INTERRUPT_GRACE_S
    with Interrupts() as interrupts:
        lander = _Lander(sink, counts, interrupts)
        if isinstance(results, Through) and getattr(type(sink), "append", None) is ParquetSink.append:
            results.deliver_to(lander.take)
        try:
            for done in results:
                lander.land(done)
        except BaseException as exc:
            lander.salvage(results, isinstance(exc, (KeyboardInterrupt, SystemExit)))
            raise
        lander.finish()
    return counts


class _Lander:
    """Appends to one sink, and keeps the counts right when rows turn out not to be storable."""

    def __init__(self, sink: Any, stats: Stats, interrupts: Interrupts):
        self._interrupts = interrupts
        self._sink = sink
        self._stats = stats
        self._probe = getattr(sink, "probe", None)
        self._demoted_before = getattr(sink, "rows_demoted", 0)
        self._sink_failed = False
        self._counting = threading.Lock()

    def land(self, done: Done) -> None:
        """`take` in the thread that gets signals: an interrupt waits until the record is handed over and counted."""
        self._interrupts.hold()
        try:
            self.take(done)
        finally:
            self._interrupts.release()

    def take(self, done: Done) -> None:
        """Appends one record, whole or not at all. Several threads may call this at once if the sink allows it."""
        record = self._record(done)
        if done.error is None and self._probe is not None:
            record = self._probed(record)
        try:
            self._sink.append(record)
        except Exception:
            self._sink_failed = True
            raise
        usage = done.usage
        with self._counting:
            self._stats.prompt_tokens += token_count(usage.get("prompt_tokens"))
            self._stats.completion_tokens += token_count(usage.get("completion_tokens"))
            if record["error"] is None:
                self._stats.rows_processed += 1
            else:
                self._stats.rows_failed += 1

    @staticmethod
    def _record(done: Done) -> dict[str, Any]:
        if done.error is not None:
            return {"id": done.id, "error": done.error or "unknown error"}
        return {**(done.out or {}), "id": done.id, "error": None}

    def _probed(self, record: dict[str, Any]) -> dict[str, Any]:
        assert self._probe is not None
        try:
            self._probe(record)
        except (TypeError, ValueError, OverflowError) as exc:
            return {"id": record["id"], "error": f"parse output not storable: {exc}"}
        return record

    def finish(self) -> None:
        """Flushes, and counts as failed what the sink demoted to error rows meanwhile."""
        self._sink.flush()
        demoted = getattr(self._sink, "rows_demoted", 0) - self._demoted_before
        self._demoted_before += demoted
        self._stats.rows_processed -= demoted
        self._stats.rows_failed += demoted

    def salvage(self, results: Any, interrupted: bool) -> None:
        """The loop ended early: land what was answered, and paid for.

        After an interrupt the records are handed over, and a sink that journals them is not waited for. A sink that
        failed is left alone, but a ParquetSink whose writer died can start another.
        """
        halt = getattr(results, "halt", None)
        left = halt(INTERRUPT_GRACE_S) if halt is not None else []
        try:
            if self._sink_failed:
                if isinstance(self._sink, ParquetSink):
                    self._sink.rescue([self._record(done) for done in left])
                return
            for done in left:
                self.land(done)
            if interrupted and isinstance(self._sink, ParquetSink):
                self._sink.flush(timeout=INTERRUPTED_S)
            else:
                self.finish()
        except Exception as exc:
            # The exception that ended the loop is the one to report; this one must not hide it.
            log.error("could not land the last results: %s: %s", type(exc).__name__, exc)
