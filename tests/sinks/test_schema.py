"""Columns keep the type they showed first; a value enters unchanged or its row becomes an error row."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest

from saturate.sinks.schema import Declared, Pinned

UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 1, 1, 12)


def rows(*outputs: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "error": None, **output} for number, output in enumerate(outputs)]


def stored(schema: Pinned | Declared, *outputs: dict[str, Any]) -> list[dict[str, Any]]:
    """What becomes of each output: its row, or {"error": text}."""
    kept = []
    for row in schema.fit(rows(*outputs)).table.to_pylist():
        del row["id"]
        error = row.pop("error")
        assert error is None or all(value is None for value in row.values())
        kept.append(row if error is None else {"error": error})
    return kept


def refused(schema: Pinned | Declared, value: Any) -> str:
    (row,) = stored(schema, {"a": value})
    assert row["error"].startswith("parse output not storable: ")
    return str(row["error"])


def pinned(*values: Any) -> Pinned:
    schema = Pinned()
    schema.fit(rows(*({"a": value} for value in values)))
    return schema


# --- Pinning ---


def test_columns_are_id_error_and_then_as_first_seen_and_stay_in_that_order() -> None:
    schema = Pinned()
    assert schema.fit(rows({"b": 1}, {"a": 1, "b": 2})).table.column_names == ["id", "error", "b", "a"]
    assert schema.fit(rows({"c": 1, "a": 1})).table.column_names == ["id", "error", "b", "a", "c"]


def test_a_column_that_was_only_null_or_empty_is_not_pinned_and_not_stored() -> None:
    schema = Pinned()
    table = schema.fit(rows({"a": None, "b": [], "c": {}, "d": [None], "e": {"x": None}})).table
    assert table.column_names == ["id", "error"]
    assert schema.types == {}


def test_a_first_batch_of_nulls_does_not_decide_the_type() -> None:
    schema = pinned(None, None)
    assert stored(schema, {"a": 1.5}) == [{"a": 1.5}]
    assert schema.types == {"a": pa.float64()}


def test_a_key_that_appears_late_gets_a_column() -> None:
    schema = pinned(1)
    assert stored(schema, {"a": 2, "late": "x"}) == [{"a": 2, "late": "x"}]


def test_a_pinned_column_is_in_every_later_part() -> None:
    table = pinned(1).fit(rows({"b": "x"})).table
    assert table.schema.field("a").type == pa.int64()
    assert table.column("a").to_pylist() == [None]


def test_a_field_that_was_only_null_inside_an_object_takes_its_first_type() -> None:
    schema = pinned({"x": None, "y": 1})
    assert stored(schema, {"a": {"x": "now"}}) == [{"a": {"x": "now", "y": None}}]
    assert schema.types["a"] == pa.struct([("x", pa.string()), ("y", pa.int64())])


def test_pins_are_taken_over_from_a_part_and_its_encodings_are_not() -> None:
    part = pa.schema(
        [("error", pa.string()), ("n", pa.int32()), ("id", pa.string()), ("d", pa.dictionary(pa.int8(), pa.string()))]
    )
    assert Pinned(part).types == {"n": pa.int32(), "d": pa.string()}


# --- What may enter a pinned column ---


@pytest.mark.parametrize(
    ("first", "later", "comes_back"),
    [
        (0.5, 3, 3.0),
        (0.5, 2**53, float(2**53)),
        ([1], [], []),
        ([1], [None], [None]),
        ({"x": 1}, {}, {"x": None}),
        ({"x": 1}, {"x": None}, {"x": None}),
        ([{"x": 1, "y": 2}], [{"x": 5}], [{"x": 5, "y": None}]),
        ([[0.5]], [[1]], [[1.0]]),
        (NOON.replace(tzinfo=UTC), NOON, NOON.replace(tzinfo=UTC)),
        (decimal.Decimal("1.50"), decimal.Decimal("2.5"), decimal.Decimal("2.50")),
        (1, None, None),
        ("x", "", ""),
        ([1], (2, 3), [2, 3]),
    ],
)
def test_a_value_that_survives_enters(first: Any, later: Any, comes_back: Any) -> None:
    assert stored(pinned(first), {"a": later}) == [{"a": comes_back}]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 2.5),
        (1, 2.0),
        (1, True),
        (1, "1"),
        (1, []),
        (1, {}),
        ("x", []),
        ("x", {}),
        ("x", 1),
        (b"x", "x"),
        (True, 1),
        ([1], {}),
        ([1], 1),
        ([1], [1.5]),
        ({"x": 1}, []),
        ({"x": 1}, {"x": "1"}),
        (0.5, 2**60),
        (0.5, True),
        (NOON, NOON.date()),
        (NOON.date(), NOON),
        (decimal.Decimal("1.5"), decimal.Decimal("1.55")),
    ],
)
def test_a_value_that_would_change_is_refused_and_the_next_row_is_not(first: Any, later: Any) -> None:
    schema = pinned(first)
    types = schema.types
    refused(schema, later)
    assert schema.types == types
    assert stored(schema, {"a": first}) == [{"a": first}]


def test_a_new_key_in_a_pinned_object_is_refused_with_what_to_do_about_it() -> None:
    error = refused(pinned({"x": 1}), {"x": 1, "z": 2})
    assert "schema=" in error
    assert "JSON string" in error
    assert "'z'" in error


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=1),
        "\ud800",
        {"k": "\udfff"},
        {"\ud800": 1},
        2**63,
        2**70,
        {"x": {}},
        [{}],
        {1: "x"},
        {b"k": 1},
        object(),
        1j,
        [1, "x"],
        [1.0, True],
        {"x": [1, {}]},
    ],
    ids=lambda value: f"{type(value).__name__} {value!r:.40}" if type(value) is not object else "object",
)
def test_what_arrow_or_parquet_cannot_hold_is_an_error_row_and_pins_nothing(value: Any) -> None:
    schema = Pinned()
    refused(schema, value)
    assert schema.types == {}


@pytest.mark.parametrize(
    ("pin", "empty"),
    [
        ({"x": {"y": 1}}, {"x": {}}),
        ([{"y": 1}], [{}]),
        ([{"y": 1}], [{"y": 1}, {}]),
        ([[{"y": 1}]], [[{}]]),
        ({"x": [{"y": {"z": 1}}]}, {"x": [{"y": {}}]}),
    ],
    ids=repr,
)
def test_an_object_without_keys_below_the_top_level_is_an_error_row_whatever_else_is_there(
    pin: Any, empty: Any
) -> None:
    assert "without keys" in refused(pinned(pin), empty)
    for outputs in ([pin, empty, pin], [empty, pin], [pin, empty]):
        kept = stored(Pinned(), *({"a": value} for value in outputs))
        assert [row.get("a", "refused") for row in kept] == ["refused" if value is empty else pin for value in outputs]


def test_a_column_name_that_is_no_text_makes_an_error_row() -> None:
    assert [set(row) for row in stored(Pinned(), {1: 2}, {"\ud800": 2}, {"a": 1})] == [{"error"}, {"error"}, {"a"}]


def test_a_refused_row_leaves_no_trace_on_the_other_columns() -> None:
    schema = pinned(1)
    outcome = stored(schema, {"a": "bad", "new": "text", "other": {"k": 1}}, {"a": 2, "new": 5})
    assert outcome[1] == {"a": 2, "new": 5}
    assert schema.types == {"a": pa.int64(), "new": pa.int64()}


# --- Within one batch ---


def test_within_a_batch_types_are_unified_where_nothing_is_lost() -> None:
    assert stored(Pinned(), {"a": 1}, {"a": 2.5}) == [{"a": 1.0}, {"a": 2.5}]
    assert stored(Pinned(), {"a": {"x": 1}}, {"a": {"y": "t"}}) == [
        {"a": {"x": 1, "y": None}},
        {"a": {"x": None, "y": "t"}},
    ]
    assert stored(Pinned(), {"a": decimal.Decimal("1.5")}, {"a": decimal.Decimal("100.25")}) == [
        {"a": decimal.Decimal("1.50")},
        {"a": decimal.Decimal("100.25")},
    ]


def test_within_a_batch_the_first_kind_stays_and_the_newcomer_fails() -> None:
    for first, newcomer in [(1, "x"), ("x", 1), ([], 1), ({}, 1), (NOON.date(), NOON), (0.5, True)]:
        kept, failed = stored(Pinned(), {"a": first, "b": 1}, {"a": newcomer, "b": 2})
        assert "error" not in kept, (first, newcomer)
        assert "error" in failed, (first, newcomer)


def test_an_int_that_a_later_float_would_round_is_the_one_that_fails() -> None:
    assert ["error" in row for row in stored(Pinned(), {"a": 2**60}, {"a": 0.5}, {"a": 7})] == [True, False, False]


def test_zoned_and_naive_datetimes_do_not_mix_in_a_batch() -> None:
    assert ["error" in row for row in stored(Pinned(), {"a": NOON.replace(tzinfo=UTC)}, {"a": NOON})] == [False, True]


def test_one_bad_row_among_thousands_costs_only_itself() -> None:
    outputs = [{"n": number, "text": "x", "vector": [0.5] * 4} for number in range(3000)]
    outputs[1234]["n"] = "bad"
    fit = Pinned().fit(rows(*outputs))
    assert [position for position, _ in fit.demoted] == [1234]
    assert fit.table.column("n").to_pylist() == [None if n == 1234 else n for n in range(3000)]


# --- Error records and ids ---


def test_an_error_record_keeps_its_error_and_has_no_values() -> None:
    table = Pinned().fit([{"id": "a", "error": None, "n": 1}, {"id": "b", "error": "http 400: no"}]).table
    assert table.to_pylist() == [{"id": "a", "error": None, "n": 1}, {"id": "b", "error": "http 400: no", "n": None}]


def test_an_empty_error_is_a_success_and_is_stored_as_null() -> None:
    assert Pinned().fit([{"id": "a", "error": ""}]).table.to_pylist() == [{"id": "a", "error": None}]


def test_ids_are_always_strings_and_always_storable() -> None:
    table = Pinned().fit([{"id": 7, "error": None}, {"id": "\ud800", "error": "\udfff"}]).table
    assert table.to_pylist() == [{"id": "7", "error": None}, {"id": "\\ud800", "error": "\\udfff"}]


# --- Declared mode ---


def declared(**columns: pa.DataType) -> Declared:
    return Declared(pa.schema([("id", pa.string()), *columns.items(), ("error", pa.string())]))


def test_a_declared_part_has_exactly_the_declared_columns() -> None:
    schema = pa.schema([("n", pa.int32()), ("error", pa.string()), ("f", pa.float32()), ("id", pa.string())])
    table = Declared(schema).fit(rows({"n": 1}, {"f": 2})).table
    assert table.schema == schema
    assert table.to_pylist()[0] == {"n": 1, "error": None, "f": None, "id": "r0"}


@pytest.mark.parametrize(
    ("type_", "value", "comes_back"),
    [
        (pa.int32(), 2.0, 2),
        (pa.float32(), 0.1, pytest.approx(0.1)),
        (pa.large_string(), b"ab", "ab"),
        (pa.binary(), "ab", b"ab"),
        (pa.map_(pa.string(), pa.int64()), {"k": 1}, [("k", 1)]),
        (pa.decimal128(10, 2), 5, decimal.Decimal("5.00")),
        (pa.list_(pa.int8(), 2), [1, 2], [1, 2]),
        (pa.timestamp("ms"), NOON, NOON),
        (pa.struct([("x", pa.int16()), ("y", pa.string())]), {"x": 1}, {"x": 1, "y": None}),
        (pa.int64(), None, None),
        (pa.list_(pa.string()), [], []),
    ],
    ids=str,
)
def test_a_declared_column_takes_what_it_can_hold_exactly(type_: pa.DataType, value: Any, comes_back: Any) -> None:
    assert stored(declared(a=type_), {"a": value}) == [{"a": comes_back}]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int32(), 2.5),
        (pa.int32(), 2**40),
        (pa.int64(), True),
        (pa.int64(), "5"),
        (pa.float32(), 1e300),
        (pa.string(), 5),
        (pa.string(), b"\xff"),
        (pa.struct([("x", pa.int64())]), {"x": 1, "new": 2}),
        (pa.struct([("x", pa.int64())]), {"x": 1.5}),
        (pa.timestamp("s"), NOON.replace(microsecond=5)),
        (pa.list_(pa.int64()), 5),
        (pa.bool_(), 1),
    ],
    ids=str,
)
def test_a_declared_column_refuses_what_it_would_change(type_: pa.DataType, value: Any) -> None:
    refused(declared(a=type_), value)


INNER = pa.struct([("b", pa.int64())])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.struct([("a", INNER)]), {"a": {}}),
        (pa.list_(INNER), [{"b": 1}, {}]),
        (pa.struct([("a", INNER), ("m", pa.map_(pa.string(), pa.int64()))]), {"a": {}, "m": {}}),
        (pa.struct([("l", pa.list_(INNER))]), {"l": [{}]}),
    ],
    ids=str,
)
def test_a_nested_object_without_keys_is_refused_in_a_declared_column_too(type_: pa.DataType, value: Any) -> None:
    """It would come back as an object of nulls."""
    assert "object without keys" in refused(declared(a=type_), value)


def test_a_declared_object_without_keys_is_taken_as_a_whole_column() -> None:
    assert stored(declared(a=INNER), {"a": {}}) == [{"a": {"b": None}}]


def test_an_undeclared_column_makes_an_error_row() -> None:
    good, bad = stored(declared(a=pa.int64()), {"a": 1}, {"a": 1, "b": 2})
    assert good == {"a": 1}
    assert "'b'" in bad["error"]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("id", pa.string())]),
        pa.schema([("id", pa.int64()), ("error", pa.string())]),
        pa.schema([("id", pa.string()), ("error", pa.string()), pa.field("n", pa.int64(), nullable=False)]),
        pa.schema([("id", pa.string()), pa.field("error", pa.string(), nullable=False)]),
        pa.schema([("id", pa.string()), ("error", pa.string()), ("n", pa.int64()), ("n", pa.int64())]),
    ],
)
def test_a_schema_that_cannot_hold_every_row_is_refused_when_it_is_given(schema: pa.Schema) -> None:
    with pytest.raises(ValueError, match="column"):
        Declared(schema)
