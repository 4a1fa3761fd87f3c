"""The same parse outputs, in the same order, given to the public project and to ours: the same is stored.

What a column accepts once its type is pinned decides which rows can be read back, so the rules of both must not
differ by a value. Two differences are intended, and at the end: a row is not refused for the company it is in, and
where the public project stops for good, ours writes an error row and goes on.
"""

import collections
import datetime
import decimal
import itertools
import math

import pyarrow.parquet
import pytest
from driver import DrivenError
from recording_server import RecordingServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

UTC = datetime.timezone.utc
AN_HOUR_EAST = datetime.timezone(datetime.timedelta(hours=1))
DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 5)
D = decimal.Decimal

# One column's values in the order of the rows. What follows END comes in a later run and meets a pinned type.
END = object()
SEQUENCES = {
    "ints and what is not an int": [1, None, -(2**63), 2**63 - 1, END, 2.0, 0.5, True, "1", 2**63, 2**70, b"1", 7],
    "ints, then floats in one part": [1, 0.5, 2**53, END, 3, 2**53, 2**53 + 1, 2**60, math.nan, math.inf, True],
    "an int too big for the floats beside it": [2**60, 0.5, 1, END, 2],
    "floats, then ints in one part": [0.5, 1, END, 2, "x", None, -0.0, 5e-324],
    "bools": [True, False, END, 1, 0.0, "true", None],
    "text and bytes": ["a", "", END, b"a", 1, "é\u2028\U0001f600", "nul\x00"],
    "bytes": [b"a", bytearray(b"b"), END, "a", b"", bytearray(b"d")],
    "text with bytes in one part": ["a", b"b", END, "c", b"d"],
    "lone surrogates": ["a", "\ud800", END, "b", "\udfff", ["\ud800"]],
    "only nulls at first": [None, None, END, None, 3, "x"],
    "empty lists at first": [[], None, END, [1], [], "x", [None], [0.5]],
    "empty objects at first": [{}, None, END, {"a": 1}, {}, {"a": None}, {"b": 1}],
    "lists": [[1, 2], [], [None], END, (3,), [1, None], [0.5], ["a"], 1, None],
    "lists of floats": [[0.5], [1], END, [1, 2], [2**60], [[1]]],
    "lists of mixed kinds": [[1, "a"], [1], END, ["a", 1], [2]],
    "a list of ints and floats": [[1, 0.5], END, [1], [0.5]],
    "lists of lists": [[[1], []], [[]], END, [[]], [[2, None]], [1], []],
    "sets": [{1}, END, {2}, frozenset({3}), {"a"}],
    "objects": [{"a": 1, "b": "x"}, {"a": 2}, END, {"b": "y"}, {}, {"a": 0.5}, {"c": 1}, {"b": "z", "a": 3}, None],
    "objects that grow in one part": [{"a": 1}, {"b": {"c": [1]}}, END, {"b": {"c": []}}, {"b": {"d": 1}}],
    "a field that is null at first": [{"a": 1, "b": None}, END, {"a": 2, "b": "text"}, {"b": 1}, {"b": "more"}],
    "lists of objects": [[{"a": 1}], [{"a": 2, "b": "x"}], END, [{"b": "y"}, None], [{"c": 1}], [{}], []],
    "a nested empty object": [{"a": {}}, {"a": {"b": 1}}, END, {"a": {}}, {"a": {"b": 2}}],
    "keys that are not text": [{1: "a"}, {"a": 1}, END, {2: 1}, {None: 1}, {"a": 2}],
    "decimals": [D("1.50"), D("2.5"), END, D("3"), D("1.005"), D("99999999.25"), 1, 0.5, "1.5"],
    "dates": [DAY, END, NOON, "2024-02-29", DAY, None],
    "times of day": [datetime.time(1, 2, 3, 4), END, datetime.time(5), DAY, None],
    "durations": [datetime.timedelta(days=1, microseconds=3), END, datetime.timedelta(0), 5],
    "naive timestamps": [NOON, END, DAY, NOON + datetime.timedelta(days=1), "now", None],
    "zoned into naive": [NOON, END, NOON.replace(tzinfo=UTC)],
    "zoned timestamps": [NOON.replace(tzinfo=UTC), END, NOON.replace(tzinfo=AN_HOUR_EAST), DAY],
    "naive into zoned": [NOON.replace(tzinfo=UTC), END, NOON, DAY],
    "naive beside zoned in one part": [NOON.replace(tzinfo=UTC), NOON, END, NOON],
    "kinds that meet in one part": ["a", 1, None, [], {}, 0.5, "b"],
    "an empty list before an int in one part": [[], 1, [2], END, 3, [4]],
    "an empty object before text in one part": [{}, "a", {"b": 1}],
}


# Rows that the public project refuses only for the company they are in: alone in their batch they are stored.
KEPT_BY_OURS = {
    "two zones in one part": [NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=AN_HOUR_EAST), END, NOON],
    "naive behind zoned": [NOON.replace(tzinfo=UTC), END, NOON.replace(tzinfo=AN_HOUR_EAST), NOON],
    "naive behind a refused zone": [NOON, END, NOON.replace(tzinfo=UTC), NOON + datetime.timedelta(days=1)],
}


def runs():
    """The rows of the two runs. Each sequence has a column of its own, so that all share one output; what is before
    a sequence's mark is in the first run and so in the first part, the rest in the second."""
    first, second = [], []
    for column, sequence in {**SEQUENCES, **KEPT_BY_OURS}.items():
        run = first
        for number, value in enumerate(sequence):
            if value is END:
                run = second
            else:
                row_id = f"{column} {number}"
                run.append((row_id, {"text": row_id, "give": {column: value}}))
    return first, second


class Stored:
    """What is on disk after the runs, column by column."""

    def __init__(self, out):
        self.records = collections.defaultdict(dict)
        self.types = collections.defaultdict(list)
        for part in sorted(out.glob("part-*.parquet")):
            table = pyarrow.parquet.read_table(str(part))
            for field in table.schema:
                self.types[field.name].append(str(field.type))
            for record in table.to_pylist():
                column, number = record["id"].rsplit(" ", 1)
                self.records[column][number] = (exactly(record.get(column)), bool(record["error"]))


def exactly(value):
    """A text that tells 1 from 1.0 and 0.0 from -0.0, whatever the order of an object's fields."""
    if isinstance(value, dict):
        return {name: exactly(one) for name, one in value.items()}
    if isinstance(value, list):
        return [exactly(one) for one in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return repr(value.astimezone(UTC))
    return repr(value)


@pytest.fixture(scope="module")
def stored(public, ours, tmp_path_factory):
    """Both runs by either program alone, and by one after the other: "ours, public" -> Stored."""
    programs = {"public": public, "ours": ours}
    answers = {}
    with RecordingServer() as server:
        for order in itertools.product(programs, repeat=2):
            out = tmp_path_factory.mktemp("columns")
            for who, rows in zip(order, runs()):
                programs[who].pump(rows, server.endpoint, out, window=1, flush_every=1000, parse="parse_given")
            answers[", ".join(order)] = Stored(out)
    return answers


@pytest.mark.parametrize("column", SEQUENCES)
@pytest.mark.parametrize("order", ["ours, ours", "public, ours", "ours, public"])
def test_a_column_stores_and_refuses_what_it_does_in_the_public_project(order, column, stored):
    alone = stored["public, public"]
    assert stored[order].records[column] == alone.records[column]
    assert stored[order].types[column] == alone.types[column]


@pytest.mark.parametrize("column", KEPT_BY_OURS)
@pytest.mark.parametrize("order", ["ours, ours", "public, ours"])
def test_ours_stores_every_row_that_the_public_project_does_and_some_that_it_refuses_for_their_company(
    order, column, stored
):
    alone = stored["public, public"].records[column]
    mixed = stored[order].records[column]
    differing = [number for number in alone if mixed[number] != alone[number]]
    assert all(alone[number] == (repr(None), True) for number in differing)
    assert not any(mixed[number][1] for number in differing)
    assert stored[order].types[column] == stored["public, public"].types[column]


@pytest.mark.parametrize("value", [[], {}, [None], [[]], {"a": None}], ids=repr)
def test_a_row_that_stops_the_public_project_for_good_is_an_error_row_of_ours(value, public, ours, server, tmp_path):
    rows = [(f"v{number}", {"text": f"v{number}", "give": {"v": one}}) for number, one in enumerate([1, value, 2])]
    out = tmp_path / "out"
    public.pump(rows[:1], server.endpoint, out, parse="parse_given")
    with pytest.raises(DrivenError, match="ArrowNotImplementedError"):
        public.pump(rows, server.endpoint, out, window=1, parse="parse_given")
    assert ours.pump(rows, server.endpoint, out, window=1, parse="parse_given")["rows_failed"] == 1
    # The error row is in the contract's terms a row that is done: the public project gets past it now.
    server.forget()
    assert public.pump(rows, server.endpoint, out, parse="parse_given")["rows_done_prior"] == 3
    assert server.requests == 0
    assert [row_id for row_id, _ in public.read_output(out)] == ["v0", "v2"]
