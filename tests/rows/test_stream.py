"""Rows in any shape become `(id, row)`, lazily and once; shards take their share of that stream."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from saturate import content_id, pump, shard_select, stream
from saturate.rows.stream import check_shard


def endless():
    i = 0
    while True:
        yield {"n": i}
        i += 1


def test_dicts_get_the_id_of_their_content_and_tuples_keep_theirs():
    rows = [{"a": 1}, ("mine", {"a": 1}), (7, {"b": 2})]
    assert list(stream(rows)) == [(content_id({"a": 1}), {"a": 1}), ("mine", {"a": 1}), ("7", {"b": 2})]


def test_an_id_is_a_string_whatever_the_column_holds():
    rows = [{"k": None}, {"k": 7.0}, {"k": True}, {"k": b"x"}, {"k": ""}]
    assert [row_id for row_id, _ in stream(rows, id_key="k")] == ["None", "7.0", "True", "b'x'", ""]


def test_id_fn_wins_over_id_key_and_id_key_over_id_keys():
    row = {"a": 1, "b": 2}
    assert next(stream([row], id_key="a", id_keys=["b"], id_fn=lambda r: r["a"] + 10))[0] == "11"
    assert next(stream([row], id_key="a", id_keys=["b"]))[0] == "1"
    assert next(stream([row], id_keys=["a"]))[0] == content_id(row, keys=["a"])


def test_an_explicit_id_is_not_replaced_by_any_of_them():
    assert list(stream([("x", {"a": 1})], id_key="a", id_fn=lambda row: "no")) == [("x", {"a": 1})]


def test_id_keys_may_be_an_iterator_and_serve_every_row():
    rows = [{"a": 1, "b": i} for i in range(3)]
    assert len({row_id for row_id, _ in stream(rows, id_keys=iter(["a"]))}) == 1


def test_rows_are_pulled_one_at_a_time():
    pulled: list[int] = []

    def rows():
        for row in endless():
            pulled.append(row["n"])
            yield row

    pairs = stream(rows())
    assert pulled == []
    next(pairs)
    assert pulled == [0]


def test_a_subclass_of_dict_is_a_row_and_comes_out_as_it_is():
    row = OrderedDict(b=1, a=2)
    assert next(stream([row]))[1] is row


@pytest.mark.parametrize("row", ["text", ["id", {}], ("id", {}, 1), 7, None])
def test_a_row_of_another_shape_is_named_by_its_position(row):
    pairs = stream([{"a": 1}, row])
    next(pairs)
    with pytest.raises(TypeError, match=f"row 1 is a {type(row).__name__}; a row is a dict, or a tuple"):
        next(pairs)


@pytest.mark.parametrize("rows", [None, 7, "text", b"bytes", {"a": 1}])
def test_what_is_no_iterable_of_rows_fails_at_the_call(rows):
    with pytest.raises(TypeError, match="rows must be an iterable of dicts"):
        stream(rows)


def test_a_single_row_gets_the_hint_to_wrap_it():
    with pytest.raises(TypeError, match=r"for one row pass \[row\]"):
        stream({"text": "one"})


def test_an_id_fn_that_is_no_function_fails_at_the_call():
    with pytest.raises(TypeError, match="id_fn must be a function row -> id, got str"):
        stream([], id_fn="text")


def test_a_missing_id_column_names_the_columns_that_are_there():
    with pytest.raises(KeyError, match=r"row 0 has no column 'id' for id_key; it has \['a', 'b'\]"):
        list(stream([{"b": 1, "a": 2}], id_key="id"))


def test_a_row_without_a_content_id_says_to_give_ids():
    with pytest.raises(TypeError, match="give ids yourself"):
        list(stream([{"when": {1, 2}}]))


def test_an_exception_of_the_source_goes_through():
    def rows():
        yield {"a": 1}
        raise OSError("disk gone")

    pairs = stream(rows())
    next(pairs)
    with pytest.raises(OSError, match="disk gone"):
        next(pairs)


def pairs(count: int) -> list[tuple[str, dict[str, Any]]]:
    return [(str(i), {"i": i}) for i in range(count)]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("skip", [0, 1, 5])
def test_shards_together_cover_every_row_once(world, skip):
    shares = [list(shard_select(pairs(20), rank, world, skip)) for rank in range(world)]
    assert sorted(row["i"] for share in shares for _, row in share) == list(range(skip, 20))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_shard_takes_every_nth_row_from_its_rank_on_after_the_skipped():
    assert [row_id for row_id, _ in shard_select(pairs(10), 1, 3)] == ["1", "4", "7"]
    assert [row_id for row_id, _ in shard_select(pairs(10), 1, 3, skip=2)] == ["3", "6", "9"]


def test_a_shard_of_an_endless_stream_is_lazy():
    share = shard_select(stream(endless()), 2, 4)
    assert [next(share)[1]["n"] for _ in range(3)] == [2, 6, 10]


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [
        (4, 4, "rank 4 of world 4 does not exist"),
        (-1, 4, "rank -1 of world 4"),
        (0, 0, "rank 0 of world 0"),
        ("0", 1, "two ints"),
        (True, 2, "two ints"),
        (0.0, 2, "two ints"),
    ],
)
def test_a_shard_that_does_not_exist_fails_at_the_call(rank, world, message):
    with pytest.raises(ValueError, match=message):
        shard_select(pairs(3), rank, world)
    with pytest.raises(ValueError, match=message):
        pump([], dict, dict, "http://h/v1", "out", shard=(rank, world))


@pytest.mark.parametrize("shard", [None, 3, (0,), (0, 1, 2)])
def test_a_shard_is_a_pair(shard):
    with pytest.raises(ValueError, match=r"a pair \(rank, world\) such as \(0, 4\)"):
        check_shard(shard)


@pytest.mark.parametrize("skip", [-1, 1.5, "3", True])
def test_skip_is_a_number_of_rows(skip):
    with pytest.raises(ValueError, match="skip must be a number of rows"):
        shard_select(pairs(3), skip=skip)
