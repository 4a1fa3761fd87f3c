"""Content ids: the same row gives the same id on every machine, Python version and run.

The id is the contract's (CONTRACT.md, "Ids"): the first 16 hex digits of the SHA-1 of CPython's
default JSON text of the row, keys sorted, non-ASCII kept. Either implementation of the contract
computes the same id, so either resumes the other's output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

ID_HEX_DIGITS = 16


def content_id(row: Any, keys: Iterable[str] | None = None) -> str:
    """The id of `row` by its content: 16 hex digits (64 bits).

    `keys` hashes only those columns; None or empty hashes the whole row. Floats are Python's `repr`,
    tuples are arrays, NaN and Infinity are written as such, nothing is normalised.

    64 bits are ample for tens of millions of rows: a collision becomes likely near five billion.

    Raises TypeError for values that JSON cannot hold (bytes, sets, dates, Decimal, keys of mixed
    types), UnicodeEncodeError for a lone surrogate, KeyError for a missing key.
    """
    wanted = list(keys) if keys is not None else []
    value = {key: row[key] for key in wanted} if wanted else row
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except TypeError as exc:
        raise TypeError(
            f"no content id for this row: {exc}. Content ids need JSON values; "
            "give ids yourself: (id, row) tuples, id_key= or id_fn="
        ) from exc
    return hashlib.sha1(text.encode("utf-8"), usedforsecurity=False).hexdigest()[:ID_HEX_DIGITS]
