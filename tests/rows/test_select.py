"""The resume filter: an id is admitted at most once a run, and never when the output holds its record."""

from __future__ import annotations

from typing import Any

import pytest

from saturate import ParquetSink, Stats, skip_done, stream


def pairs(*ids: str) -> list[tuple[str, dict[str, Any]]]:
    return [(row_id, {"position": i}) for i, row_id in enumerate(ids)]


def ids(rows: Any) -> list[str]:
    return [row_id for row_id, _ in rows]


def test_done_ids_and_repeats_are_dropped_and_counted_apart():
    stats = Stats()
    left = list(skip_done(pairs("a", "b", "c", "b", "a", "d", "d"), {"a", "x"}, stats=stats))
    assert ids(left) == ["b", "c", "d"]
    assert left[0][1] == {"position": 1}, "the first of two wins"
    # A repeat of a stored id is done, not deduped.
    assert (stats.rows_total, stats.rows_done_prior, stats.rows_deduped) == (7, 2, 2)


@pytest.mark.parametrize("done", [set(), frozenset({"a"}), {"a": 1}, ["a"], ("a",), {"a"}.union])
def test_any_container_of_ids_will_do(done):
    if callable(done):
        with pytest.raises(TypeError, match="done must be a set of ids, a sink or an output directory"):
            skip_done(pairs("a"), done)
    else:
        assert ids(skip_done(pairs("a", "b"), done)) == (["b"] if done else ["a", "b"])


class Sink:
    def __init__(self) -> None:
        self.asked: list[bool] = []

    def existing_ids(self, retry_errors: bool = False) -> set[str]:
        self.asked.append(retry_errors)
        return {"good"} if retry_errors else {"good", "failed"}


@pytest.mark.parametrize(("retry_errors", "left"), [(False, ["new"]), (True, ["failed", "new"])])
def test_a_sink_is_asked_once_at_the_first_pull(retry_errors, left):
    sink = Sink()
    rows = skip_done(pairs("good", "failed", "new"), sink, retry_errors=retry_errors)
    assert sink.asked == []
    assert ids(rows) == left
    assert sink.asked == [retry_errors]


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_an_output_directory_is_read(tmp_path, kind):
    with ParquetSink(tmp_path / "out") as sink:
        sink.append({"id": "good", "error": None})
        sink.append({"id": "failed", "error": "http 500"})
    where = kind(tmp_path / "out")
    assert ids(skip_done(pairs("good", "failed", "new"), where)) == ["new"]
    assert ids(skip_done(pairs("good", "failed", "new"), where, retry_errors=True)) == ["failed", "new"]


def test_a_directory_that_does_not_exist_holds_nothing_and_is_not_made(tmp_path):
    assert ids(skip_done(pairs("a"), tmp_path / "none")) == ["a"]
    assert not (tmp_path / "none").exists()


def test_rows_are_pulled_one_at_a_time():
    pulled: list[str] = []

    def rows():
        for row_id, row in pairs("a", "b", "c"):
            pulled.append(row_id)
            yield row_id, row

    left = skip_done(rows(), {"a"})
    assert pulled == []
    assert next(left)[0] == "b" and pulled == ["a", "b"]


@pytest.mark.parametrize("rows", [None, 3, {"a": 1}])
def test_rows_that_are_none_fail_at_the_call(rows):
    with pytest.raises(TypeError, match="rows must be an iterable"):
        skip_done(rows, set())


def test_a_done_that_is_nothing_of_the_kind_fails_at_the_call():
    with pytest.raises(TypeError, match="got int"):
        skip_done(pairs("a"), 3)


def test_it_composes_with_stream():
    rows = [{"k": "a"}, {"k": "b"}, {"k": "a"}]
    assert ids(skip_done(stream(rows, id_key="k"), {"b"})) == ["a"]
