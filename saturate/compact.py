"""`saturate compact OUT NEW`: the same output in a few large parts, for whoever reads or resumes it.

NEW says what OUT says: the same ids are done, the same ones have failed, `read_output` gives the same rows, and a run
into it goes on with the same types. Of an id with several records the one that counts is kept (CONTRACT.md, "Which
record counts"), of one that has only failed the last error. OUT is read and never touched.

Invariants:
* a row keeps exactly the columns and types of its part, so only parts of one schema are put together; the schema that a
  run would go on with comes last;
* in memory are one part, 24 bytes for each id and a bit for each row;
* a local NEW appears whole or not at all: it is made beside itself and renamed. In a store that cannot rename a
  directory, parts appear one by one, and those of an attempt that fails are removed again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from saturate.rows.seen import IdSet
from saturate.sinks import journal, layout
from saturate.sinks.packing import is_error
from saturate.sinks.store import LocalStore, Location, Store, journal_directory, open_store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("saturate")

DEFAULT_PART_ROWS = 100_000
# Whatever comes first: rows may be of any size.
_PART_BYTES = 256 << 20
_BATCH_ROWS = 1024


@dataclass
class Compacted:
    """What came of it: parts read and written, rows written that succeeded and that failed, and records left out."""

    parts_read: int = 0
    parts: int = 0
    succeeded: int = 0
    failed: int = 0
    superseded: int = 0
    unreadable: list[str] = field(default_factory=list)


@dataclass
class _Part:
    """A readable part of the source: its schema, and for each row whether it is kept."""

    name: str
    schema: pa.Schema
    kept: bytearray


def compact(out_uri: Location, new_uri: Location, part_rows: int = DEFAULT_PART_ROWS) -> Compacted:
    """Write the output at `out_uri` into `new_uri`, which must not exist or be empty, in parts of `part_rows` rows.

    Parts that cannot be read are left out, with a log line, as every reader leaves them out; a run does their rows
    again. Raises ValueError if `part_rows` is less than 1, NEW is OUT or is not empty, OUT has no parts, or rows of
    OUT are still in a journal on this machine (a run is going on, or was cut off: run it to its end first).
    """
    if part_rows < 1:
        raise ValueError(f"part_rows must be at least 1, not {part_rows}")
    source, target = open_store(out_uri), open_store(new_uri)
    if source.uri.rstrip("/") == target.uri.rstrip("/"):
        raise ValueError(f"{target.uri} is the output itself; name another directory")
    if journal.segments(journal_directory(source, None)):
        raise ValueError(f"a run into {source.uri} is going on or was cut off; run its command to the end first")
    if not target.is_empty():
        raise ValueError(f"{target.uri} is not empty")
    result = Compacted()
    parts = _chosen(source, result)
    if not parts:
        raise ValueError(f"{source.uri} has no readable parts")
    with _whole_or_not_at_all(target) as store:
        writer = _PartWriter(store, part_rows, result)
        for schema in _schemas_by_last_use(parts):
            for part in parts:
                if part.schema == schema:
                    for table in _kept_rows(source, part, schema):
                        writer.add(table)
            writer.finish(schema if schema == parts[-1].schema else None)
        _copy_the_rest(source, store)
    return result


# --- Which rows are kept ----------------------------------------------------------------------------------------------


def _chosen(store: Store, result: Compacted) -> list[_Part]:
    """The readable parts in name order with the rows that count marked: one for each id."""
    succeeded, failed = IdSet(), IdSet()
    latest_first: list[tuple[_Part, list[Any], list[int]]] = []
    for name in sorted(filter(layout.is_part, store.listing()), reverse=True):
        try:
            schema, ids, errors = _ids_and_errors(store, name)
        except Exception as error:
            logger.warning("leaving out unreadable part %s: %s: %s", name, type(error).__name__, error)
            result.unreadable.append(name)
            continue
        part = _Part(name, schema, bytearray(len(ids)))
        wrong = [row for row, error in enumerate(errors) if is_error(error)]
        for row in wrong:
            part.kept[row] = 2
        for row in reversed(range(len(ids))):
            part.kept[row] = 0 if part.kept[row] else succeeded.add(ids[row])
        latest_first.append((part, [ids[row] for row in wrong], wrong))
        result.parts_read += 1
    # Only now is it known which ids have no success at all.
    for part, ids, wrong in latest_first:
        for id_, row in zip(reversed(ids), reversed(wrong)):
            part.kept[row] = id_ not in succeeded and failed.add(id_)
    result.superseded = sum(part.kept.count(0) for part, _, _ in latest_first)
    return [part for part, _, _ in reversed(latest_first)]


def _ids_and_errors(store: Store, name: str) -> tuple[pa.Schema, list[Any], list[Any]]:
    import pyarrow.parquet as pq

    with store.open(name) as source, pq.ParquetFile(source) as file:
        schema = file.schema_arrow
        present = [column for column in ("id", "error") if column in schema.names]
        table = file.read(columns=present, use_threads=False)
    ids = table.column("id").to_pylist()
    return schema, ids, table.column("error").to_pylist() if "error" in present else [None] * len(ids)


def _schemas_by_last_use(parts: list[_Part]) -> list[pa.Schema]:
    """Each schema once, in the order of its last part: that of the last part, which pins, comes last."""
    schemas: list[pa.Schema] = []
    for part in reversed(parts):
        if part.schema not in schemas:
            schemas.insert(0, part.schema)
    return schemas


def _kept_rows(store: Store, part: _Part, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a part that count; `schema` is that of the part but for its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if 1 not in part.kept:
        return
    with store.open(part.name) as source, pq.ParquetFile(source) as file:
        start = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            kept = part.kept[start : start + len(batch)]
            start += len(batch)
            if 0 in kept:
                batch = batch.filter(pa.array([each == 1 for each in kept], pa.bool_()))
            if len(batch):
                yield pa.Table.from_batches([batch]).cast(schema)


# --- Writing ----------------------------------------------------------------------------------------------------------


class _PartWriter:
    """Collects rows of one schema and puts them into parts, each with its sidecar."""

    def __init__(self, store: Store, part_rows: int, result: Compacted) -> None:
        self._store = store
        self._part_rows = part_rows
        self._result = result
        self._names = layout.PartNames()
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self._last_schema: pa.Schema | None = None

    def add(self, table: pa.Table) -> None:
        while len(table):
            piece = table.slice(0, self._part_rows - self._rows)
            table = table.slice(len(piece))
            self._tables.append(piece)
            self._rows += len(piece)
            self._bytes += piece.nbytes
            if self._rows == self._part_rows or self._bytes >= _PART_BYTES:
                self._put()

    def finish(self, last: pa.Schema | None) -> None:
        """End the parts of this schema. `last`: a part with this schema must be there, if need be without rows."""
        if last is not None and not self._rows and self._last_schema != last:
            self._tables.append(last.empty_table())
        if self._tables:
            self._put()

    def _put(self) -> None:
        import pyarrow as pa

        from saturate.sinks.part import sidecar_bytes, to_bytes

        table = pa.concat_tables(self._tables)
        self._tables, self._rows, self._bytes = [], 0, 0
        self._last_schema = table.schema
        name, data = self._names.next(), to_bytes(table)
        self._store.put(name, data)
        # A part without an `error` column has none in the source either: its rows are read, and its ids are not done.
        if "error" in table.schema.names:
            self._store.put(layout.sidecar_of(name), sidecar_bytes(table, data.size))
            failed = sum(map(is_error, table.column("error").to_pylist()))
        else:
            failed = 0
        self._result.parts += 1
        self._result.failed += failed
        self._result.succeeded += len(table) - failed


def _copy_the_rest(source: Store, target: Store) -> None:
    """Markers, statistics and telemetry."""
    names = [f"{layout.COMPLETIONS}/{name}" for name in source.listing(layout.COMPLETIONS) if not name.startswith(".")]
    names += [name for name in source.listing() if layout.is_telemetry(name)]
    for name in sorted(names):
        target.put(name, source.read(name))


@contextmanager
def _whole_or_not_at_all(target: Store) -> Iterator[Store]:
    """Where to write so that the target has either all that is written here, or nothing."""
    if not target.local:
        target.prepare()
        try:
            yield target
        except BaseException:
            target.clear()
            raise
        return
    parent, name = os.path.split(target.uri)
    os.makedirs(parent, exist_ok=True)
    unfinished = LocalStore(os.path.join(parent, f".tmp-{name}-{uuid.uuid4().hex[:8]}"))
    try:
        yield unfinished
        # Onto an empty directory this succeeds, and onto one that has been filled meanwhile it fails.
        os.rename(unfinished.uri, target.uri)
    except BaseException:
        unfinished.clear()
        raise


# --- The command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `saturate compact`."""
    parser.description = "Write an output again in a few large parts. The output itself is not touched."
    parser.add_argument("out", metavar="OUT", help="the output: a directory or any fsspec URI")
    parser.add_argument("new", metavar="NEW", help="where to write; must not exist or be empty")
    parser.add_argument(
        "--part-rows", type=int, default=DEFAULT_PART_ROWS, metavar="N", help="rows per part (default %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """`saturate compact`: 0, or 2 with the reason on stderr."""
    try:
        result = compact(arguments.out, arguments.new, arguments.part_rows)
    except ValueError as error:
        print(f"saturate compact: {error}", file=sys.stderr)
        return 2
    print(
        f"{result.parts_read} parts -> {result.parts}: {result.succeeded} rows, {result.failed} errors, "
        f"{result.superseded} superseded records left out"
        + (f", {len(result.unreadable)} unreadable parts left out" if result.unreadable else "")
    )
    return 0
