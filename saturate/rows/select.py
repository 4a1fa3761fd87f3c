"""The resume filter: rows whose id an output already holds, and repeats within the run, are dropped.

Invariant: an id is admitted at most once a run, and never when the output holds its record. What is remembered of an
id is at most 24 bytes (`saturate.rows.seen`), of the output's ids as of this run's.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from typing import Any, Optional, Protocol

from saturate.rows.seen import IdSet
from saturate.rows.stream import IdRow, _require_rows


class RowCounts(Protocol):
    """What the filter counts: `Stats` has these fields."""

    rows_total: int
    rows_done_prior: int
    rows_deduped: int


def skip_done(
    rows: Iterable[IdRow], done: Any, retry_errors: bool = False, stats: Optional[RowCounts] = None
) -> Iterator[IdRow]:
    """The rows of `rows`, a stream of `(id, row)`, whose id is not done, each id once.

    `done` is a container of ids, an object with `existing_ids(retry_errors=...)` such as a sink, or an
    output directory (str or path). It is read at the first pull, not at the call. `retry_errors` admits
    ids of which the output holds only errors. `stats` counts rows_total (every row seen),
    rows_done_prior and rows_deduped.
    """
    _require_rows(rows)
    if not (isinstance(done, (str, os.PathLike)) or hasattr(done, "existing_ids") or hasattr(done, "__contains__")):
        raise TypeError(f"done must be a set of ids, a sink or an output directory, got {type(done).__name__}")
    return _skip_done(rows, done, retry_errors, stats)


def _skip_done(rows: Iterable[IdRow], done: Any, retry_errors: bool, stats: Optional[RowCounts]) -> Iterator[IdRow]:
    prior = done_ids(done, retry_errors)
    seen = IdSet()
    for row_id, row in rows:
        if stats is not None:
            stats.rows_total += 1
        if row_id in prior:
            if stats is not None:
                stats.rows_done_prior += 1
        elif seen.add(row_id):
            yield row_id, row
        elif stats is not None:
            stats.rows_deduped += 1


def done_ids(done: Any, retry_errors: bool) -> Container[str]:
    """`done`, in any of the forms that `skip_done` takes, as a container of ids."""
    if isinstance(done, (str, os.PathLike)):
        from saturate.sinks import ParquetSink

        with ParquetSink(done) as sink:
            return sink.done_ids(retry_errors)
    if hasattr(done, "done_ids"):
        compact: Container[str] = done.done_ids(retry_errors)
        return compact
    if hasattr(done, "existing_ids"):
        ids: Container[str] = done.existing_ids(retry_errors=retry_errors)
        return ids
    return done  # type: ignore[no-any-return]
