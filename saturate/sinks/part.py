"""A part and its sidecar as bytes: encoding rows, and reading back the two columns that say which rows are there.

Invariant: encoding always succeeds. Rows that cannot be stored become error rows in the same part, so no row is ever
missing and none can stop a run or the resume after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from saturate.sinks import layout
from saturate.sinks.packing import NOT_STORABLE, NotStorable, Record, is_error, unpack
from saturate.sinks.schema import Declared, Fit, Pinned, Schema, all_demoted, storable_text
from saturate.sinks.store import Store

logger = logging.getLogger("saturate")

_INDEX = ["id", "error"]
# Our addition to a sidecar: the size of its part, by which a truncated part is found without opening it.
_PART_BYTES = b"saturate.part_bytes"
_MAGIC = b"PAR1"
_TRY_AGAIN_AFTER_S = (0.5, 1.0)


@dataclass(frozen=True)
class Encoded:
    """A part's bytes, its id and error columns, and how many rows could not be stored as they came."""

    data: pa.Buffer
    index: pa.Table
    demoted: int


def encode(packed: list[bytes], schema: Schema) -> Encoded:
    """The rows as one part, in order, one row group."""
    records: list[Record] = []
    unloadable = 0
    for each in packed:
        try:
            records.append(unpack(each))
        except NotStorable as error:
            unloadable += 1
            records.append({"id": error.id, "error": NOT_STORABLE + storable_text(error)})
    fit, data = _fit_and_encode(records, schema)
    if fit.demoted:
        position, why = fit.demoted[0]
        logger.warning(
            "%d of %d rows do not fit the types of their columns and became error rows; the first, %s: %s",
            len(fit.demoted),
            len(records),
            records[position]["id"],
            why,
        )
    return Encoded(data, fit.table.select(_INDEX), len(fit.demoted) + unloadable)


def _fit_and_encode(records: list[Record], schema: Schema) -> tuple[Fit, pa.Buffer]:
    try:
        fit = schema.fit(records)
        return fit, to_bytes(fit.table)
    except MemoryError:
        raise
    except Exception as error:
        # A combination of types that Arrow or parquet turns out not to support. Were it raised, the journal would
        # bring the same rows back at every resume.
        logger.exception("a part of %d rows cannot be encoded; all of them become error rows", len(records))
        fit = all_demoted(records, f"{type(error).__name__}: {error}")
        return fit, to_bytes(fit.table)


def to_bytes(table: pa.Table) -> pa.Buffer:
    """The table as a parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=max(1, len(table)))
    return sink.getvalue()


def sidecar_bytes(index: pa.Table, part_bytes: int) -> pa.Buffer:
    """The sidecar of a part of that size with those id and error columns."""
    return to_bytes(index.select(_INDEX).replace_schema_metadata({_PART_BYTES: str(part_bytes)}))


def read_index(store: Store, part: str) -> pa.Table:
    """The id and error columns of a part. Raises if it is unreadable or lacks one of them."""
    with store.open(part) as source, pq.ParquetFile(source) as file:
        return file.read(columns=_INDEX, use_threads=False).select(_INDEX)


@dataclass(frozen=True)
class DoneIds:
    """The ids in a file that need not be done again, and the size of its part if the file is a sidecar that tells."""

    ids: pa.ChunkedArray
    part_bytes: int | None


def read_done(store: Store, part: str, retry_errors: bool) -> DoneIds:
    """What a part says is done. Raises if it is unreadable or lacks one of the two columns."""
    with store.open(part) as source:
        return _done_in(source, retry_errors)


def read_done_in_sidecar(store: Store, part: str, retry_errors: bool) -> DoneIds:
    """What the sidecar of a part says is done; it is fetched whole. Raises like `read_done`."""
    return _done_in(pa.BufferReader(store.read(layout.sidecar_of(part))), retry_errors)


def _done_in(source: Any, retry_errors: bool) -> DoneIds:
    # There is nothing to coalesce in a file of two columns, and a thread for it costs as much as reading it.
    with pq.ParquetFile(source, pre_buffer=False) as file:
        if "error" not in file.schema_arrow.names:
            raise KeyError("error")
        # Without `retry_errors` it is all the same whether a record is an error.
        table = file.read(columns=_INDEX if retry_errors else ["id"], use_threads=False)
    recorded = (table.schema.metadata or {}).get(_PART_BYTES)
    ids = table.column("id")
    if retry_errors and table.column("error").null_count < len(table):
        errors = table.column("error").to_pylist()
        ids = ids.filter(pa.array([not is_error(error) for error in errors], pa.bool_()))
    return DoneIds(ids, None if recorded is None else int(recorded))


def ends_like_parquet(store: Store, name: str, size: int) -> bool:
    """Whether a file has a parquet footer at its end: a truncated one practically never does. Costs one small read."""
    tail = store.tail(name, 8)
    return tail[4:] == _MAGIC and int.from_bytes(tail[:4], "little") + 12 <= size


def declared(serialized: bytes) -> Schema:
    """The schema rules of a caller's own schema, given in Arrow's IPC format."""
    return Declared(pa.ipc.read_schema(pa.BufferReader(serialized)))


def pinned_by(store: Store, names: Iterable[str]) -> Schema:
    """The schema rules that continue what an output with these files holds: its last part that is readable pins."""
    for name in sorted(filter(layout.is_part, names), reverse=True):
        for pause in (*_TRY_AGAIN_AFTER_S, None):
            try:
                return Pinned(_schema_of(store, name))
            except Exception as error:
                # An error of Arrow's is final; a store that is away for a moment must not change any type.
                if pause is None or isinstance(error, (pa.ArrowException, FileNotFoundError)):
                    logger.warning("cannot read the types of the columns of %s: %s", name, error)
                    break
                time.sleep(pause)
    return Pinned()


def _schema_of(store: Store, name: str) -> Any:
    with store.open(name) as source:
        return pq.read_schema(source)
