"""read_output: what an output says, one row for each id that has succeeded.

The rule for an id that has several records: a success wins over an error, and among successes the one in the later
part, in name order. Ids come in the order in which they are first seen, errors included; an id that only ever failed
is left out. A record is an error if its `error` is neither null nor empty, here as in the done-set.

Two passes: the first reads the id and error columns and decides which record wins, the second reads the parts one
after the other. In memory at a time: the ids, one part, and the rows that healed an error seen in an earlier part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from saturate.sinks import layout
from saturate.sinks.store import Location, Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("saturate")

Row = dict[str, Any]

_ERROR_ONLY = -1
_ROW_BITS = 40
_SLICE_ROWS = 1024


def read_output(out_uri: Location) -> Iterator[tuple[str, Row]]:
    """Yield `(id, row)` for every id with a success; `row` has the columns of its own part, without id and error.

    Unreadable parts are skipped with a log line. A directory that does not exist has no rows, and is not created.
    """
    store = open_store(out_uri)
    parts = sorted(filter(layout.is_part, store.listing()))
    winners, first_seen = _winners(store, parts)
    moved = _moved_rows(winners, first_seen)
    fetched: dict[int, dict[int, Row]] = {}
    ids = iter(winners.items())
    for part, count in enumerate(first_seen):
        here = _PartRows(store, parts[part])
        for id_, place in islice(ids, count):
            if place == _ERROR_ONLY:
                continue
            home, row = place >> _ROW_BITS, place & ((1 << _ROW_BITS) - 1)
            if home == part:
                yield id_, here.row(row)
                continue
            if home not in fetched:
                elsewhere = _PartRows(store, parts[home])
                fetched[home] = {each: elsewhere.row(each) for each in moved.pop(home)}
            yield id_, fetched[home].pop(row)


def _winners(store: Store, parts: list[str]) -> tuple[dict[str, int], list[int]]:
    """Each id's winning place (part number and row number in one int), and how many new ids each part shows."""
    winners: dict[str, int] = {}
    first_seen = []
    for number, name in enumerate(parts):
        known = len(winners)
        try:
            ids, errors = _ids_and_errors(store, name)
        except Exception as error:
            logger.warning("skipping unreadable part %s: %s: %s", name, type(error).__name__, error)
        else:
            place = number << _ROW_BITS
            for row, (id_, failed) in enumerate(zip(ids, errors)):
                if failed:
                    winners.setdefault(id_, _ERROR_ONLY)
                else:
                    winners[id_] = place + row
        first_seen.append(len(winners) - known)
    return winners, first_seen


def _ids_and_errors(store: Store, name: str) -> tuple[list[str], list[str | None]]:
    import pyarrow.parquet as pq

    with store.open(name) as source, pq.ParquetFile(source) as file:
        present = [column for column in ("id", "error") if column in file.schema_arrow.names]
        table = file.read(columns=present, use_threads=False)
    ids = table.column("id").to_pylist()
    return ids, table.column("error").to_pylist() if "error" in present else [None] * len(ids)


def _moved_rows(winners: dict[str, int], first_seen: list[int]) -> dict[int, list[int]]:
    """For each part, its winning rows whose ids were first seen in an earlier part."""
    moved: dict[int, list[int]] = {}
    places = iter(winners.values())
    for part, count in enumerate(first_seen):
        for place in islice(places, count):
            if place != _ERROR_ONLY and place >> _ROW_BITS != part:
                moved.setdefault(place >> _ROW_BITS, []).append(place & ((1 << _ROW_BITS) - 1))
    return moved


class _PartRows:
    """The rows of one part by number. It is read at the first one and turned into Python values a slice at a time."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._table: pa.Table | None = None
        self._start = 0
        self._slice: list[Row] = []

    def row(self, number: int) -> Row:
        if not self._start <= number < self._start + len(self._slice):
            if self._table is None:
                self._table = self._read()
            self._start = number - number % _SLICE_ROWS
            self._slice = self._table.slice(self._start, _SLICE_ROWS).to_pylist()
        return dict(self._slice[number - self._start])

    def _read(self) -> pa.Table:
        import pyarrow.parquet as pq

        with self._store.open(self._name) as source, pq.ParquetFile(source) as file:
            return file.read(columns=[name for name in file.schema_arrow.names if name not in ("id", "error")])
