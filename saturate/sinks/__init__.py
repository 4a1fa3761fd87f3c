"""A row lands: sinks that take records, and readers of what they wrote.

Read in this order: `layout` (names), `store` (a directory, local or remote), `packing`, `schema` and `part` (from a
record to a file), `journal`, `framing`, `writer` (the process), `handover` and `parquet` (the caller's side of it),
then `resume`, `read` and `file`.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Protocol

from saturate.sinks.file import FileSink
from saturate.sinks.handover import SinkError
from saturate.sinks.parquet import ParquetSink
from saturate.sinks.read import read_output
from saturate.sinks.resume import existing_ids

__all__ = ["FileSink", "ParquetSink", "Sink", "SinkError", "existing_ids", "read_output"]


class Sink(Protocol):
    """What a run needs of a sink: an id that `existing_ids` returns has a durable record.

    A sink may offer more, and a run uses what it finds: `done_ids(retry_errors)`, the ids of `existing_ids` as anything
    that can be asked whether an id is in it; `close()`; `begin_run(shard)`; `write_telemetry(shard, lines)` with
    `telemetry_every_ticks`; `write_stats(shard, stats)`; `write_marker(shard)`; and `rows_demoted`, the number of
    records that could not be stored, final after `flush()`.
    """

    def existing_ids(self, retry_errors: bool = False) -> Set[str]:
        """The ids not to be done again; with `retry_errors`, ids whose only records are errors are not among them."""

    def append(self, record: dict[str, Any]) -> object:
        """Take a record: `id`, `error` (None on success), and the columns."""

    def flush(self) -> object:
        """Return when every record appended so far is durable."""
