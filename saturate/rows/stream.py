"""Rows in any shape become `(id, row)`, lazily and once; shards take their share of that stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

from saturate.rows.ids import content_id

Row = dict[str, Any]
IdRow = tuple[str, Row]
IdFn = Callable[[Row], Any]


def stream(
    rows: Iterable[Any],
    id_key: Optional[str] = None,
    id_keys: Optional[Iterable[str]] = None,
    id_fn: Optional[IdFn] = None,
) -> Iterator[IdRow]:
    """`rows` as a lazy stream of `(id, row)`.

    A row is a dict, or a tuple `(id, row)`; both may be mixed. A dict's id is `str(id_fn(row))` if
    `id_fn` is given, else `str(row[id_key])`, else `content_id(row, id_keys)`.

    Raises TypeError at the call when `rows` is not iterable, and while iterating for a row of another
    shape, naming its position.
    """
    _require_rows(rows)
    if id_fn is not None and not callable(id_fn):
        raise TypeError(f"id_fn must be a function row -> id, got {type(id_fn).__name__}")
    keys = list(id_keys) if id_keys is not None else None
    return _stream(rows, id_key, keys, id_fn)


def _stream(
    rows: Iterable[Any], id_key: Optional[str], id_keys: Optional[list[str]], id_fn: Optional[IdFn]
) -> Iterator[IdRow]:
    for position, row in enumerate(rows):
        if isinstance(row, tuple) and len(row) == 2:
            yield str(row[0]), row[1]
        elif isinstance(row, dict):
            if id_fn is not None:
                yield str(id_fn(row)), row
            elif id_key is not None:
                yield _id_of_key(row, id_key, position), row
            else:
                yield content_id(row, id_keys), row
        else:
            raise TypeError(
                f"row {position} is a {type(row).__name__}; a row is a dict, or a tuple (id, dict). "
                "For plain strings: ({'text': s} for s in strings)"
            )


def _id_of_key(row: Row, id_key: str, position: int) -> str:
    try:
        return str(row[id_key])
    except KeyError:
        raise KeyError(f"row {position} has no column {id_key!r} for id_key; it has {sorted(map(str, row))}") from None


def shard_select(rows: Iterable[IdRow], rank: int = 0, world: int = 1, skip: int = 0) -> Iterator[IdRow]:
    """This shard's share of an `(id, row)` stream: every `world`-th row from `rank` on, after `skip` rows.

    All shards must see the same rows in the same order; together they then cover each row once.

    Raises ValueError at the call unless 0 <= rank < world and skip >= 0.
    """
    _require_rows(rows)
    check_shard((rank, world))
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
        raise ValueError(f"skip must be a number of rows >= 0, got {skip!r}")
    return (pair for index, pair in enumerate(rows) if index >= skip and (index - skip) % world == rank)


def check_shard(shard: Any) -> tuple[int, int]:
    """`shard` as `(rank, world)`; ValueError with a sentence unless both are ints and 0 <= rank < world."""
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise ValueError(f"shard must be a pair (rank, world) such as (0, 4), got {shard!r}") from None
    for value in (rank, world):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"shard must be two ints (rank, world), got {shard!r}")
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"shard rank {rank} of world {world} does not exist: ranks go from 0 to world - 1")
    return rank, world


def _require_rows(rows: Any) -> None:
    if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
        raise TypeError(
            f"rows must be an iterable of dicts or of (id, dict) tuples, got {type(rows).__name__}"
            + ("; for one row pass [row]" if isinstance(rows, Mapping) else "")
        )
