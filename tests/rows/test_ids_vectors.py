"""Content ids and `stream` against 123 cases recorded from the public project: the ids on disk must be the same.

The vectors hold Python expressions, since JSON cannot say tuples, bytes, NaN or dates.
"""

import datetime
import hashlib
import json
from collections import OrderedDict, namedtuple
from decimal import Decimal
from pathlib import Path

import pytest

from saturate.rows import content_id, stream

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "saturate" / "ids.json").read_text(encoding="utf-8"))
SCOPE = {
    "nan": float("nan"),
    "inf": float("inf"),
    "Decimal": Decimal,
    "datetime": datetime,
    "OrderedDict": OrderedDict,
    "namedtuple": namedtuple,
}
EXCEPTIONS = {"TypeError": TypeError, "KeyError": KeyError, "UnicodeEncodeError": UnicodeEncodeError}


def value_of(expression):
    return eval(expression, dict(SCOPE))


def cases(group, *shown):
    return [pytest.param(case, id=" ".join(ascii(case[name]) for name in shown)[:90]) for case in VECTORS[group]]


def test_all_the_vectors_are_there():
    assert [len(VECTORS[group]) for group in ("content_id", "content_id_keys", "stream")] == [76, 9, 38]


@pytest.mark.parametrize("case", cases("content_id", "row"))
def test_the_content_id_of_a_row_is_the_recorded_one(case):
    row = value_of(case["row"])
    if "raises" in case:
        with pytest.raises(EXCEPTIONS[case["raises"]]):
            content_id(row)
    else:
        assert content_id(row) == case["id"]


@pytest.mark.parametrize("case", cases("content_id_keys", "row", "keys"))
def test_the_content_id_of_chosen_keys_is_the_recorded_one(case):
    row, keys = value_of(case["row"]), value_of(case["keys"])
    if "raises" in case:
        with pytest.raises(EXCEPTIONS[case["raises"]]):
            content_id(row, keys)
    else:
        assert content_id(row, keys) == content_id(row, keys=keys) == case["id"]


@pytest.mark.parametrize("case", cases("stream", "rows", "kwargs"))
def test_stream_gives_the_recorded_ids(case):
    rows, keywords = value_of(case["rows"]), value_of(case["kwargs"])
    if "raises" in case:
        with pytest.raises(EXCEPTIONS[case["raises"]]):
            list(stream(rows, **keywords))
    else:
        assert [row_id for row_id, _ in stream(rows, **keywords)] == case["ids"]


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in VECTORS["content_id"] if "hashed_text" in c])
def test_an_id_is_the_start_of_the_sha1_of_the_recorded_text(case):
    assert hashlib.sha1(case["hashed_text"].encode("utf-8")).hexdigest()[:16] == content_id(value_of(case["row"]))
