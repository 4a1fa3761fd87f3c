"""`saturate compact`: the new output says what the old one says, in few parts, and the old one is as it was."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saturate import ParquetSink, existing_ids, read_output
from saturate.compact import add_arguments, compact, run
from saturate.sinks import layout, part


def put_part(out: Path, number: int, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    """A part as a run writes it; `rows` hold every column."""
    (out / "_manifest").mkdir(parents=True, exist_ok=True)
    name = f"part-1796070304206-{number:06d}-00000000.parquet"
    table = pa.Table.from_pylist(rows, schema)
    data = part.to_bytes(table)
    (out / name).write_bytes(data.to_pybytes())
    (out / layout.sidecar_of(name)).write_bytes(part.sidecar_bytes(table, data.size).to_pybytes())
    return out / name


SCHEMA = pa.schema([("id", pa.string()), ("error", pa.string()), ("a", pa.int64())])
WIDER = SCHEMA.append(pa.field("b", pa.list_(pa.string())))


def row(id_: str, error: str | None = None, **columns: Any) -> dict[str, Any]:
    return {"id": id_, "error": error, **columns}


def tree(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def parts_in(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if layout.is_part(path.name))


def errors_in(out: Path) -> dict[str, str]:
    """The last error of each id that has only failed."""
    rows = []
    for path in parts_in(out):
        try:
            rows += pq.read_table(path, columns=["id", "error"]).to_pylist()
        except pa.ArrowInvalid:
            continue  # unreadable, or without an `error` column
    good = {row["id"] for row in rows if not row["error"]}
    return {row["id"]: row["error"] for row in rows if row["error"] and row["id"] not in good}


def assert_says_the_same(out: Path, new: Path) -> None:
    assert dict(read_output(new)) == dict(read_output(out))
    for retry_errors in (False, True):
        assert existing_ids(new, retry_errors) == existing_ids(out, retry_errors)
        assert ParquetSink(new).existing_ids(retry_errors) == ParquetSink(out).existing_ids(retry_errors)
    assert errors_in(new) == errors_in(out)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Errors that healed, one that did not, one that did so twice, a success done twice, a late column."""
    out = tmp_path / "out"
    put_part(out, 0, [row("x", "http 500"), row("y", "http 400"), row("z", a=1), row("w", "first")], SCHEMA)
    put_part(out, 1, [row("x", a=2), row("v", a=3)], SCHEMA)
    put_part(out, 2, [row("v", a=4, b=["late"]), row("v", "later, but an error"), row("w", "second")], WIDER)
    (out / "completions").mkdir()
    (out / "completions" / "shard-0.done").write_bytes(b"done")
    (out / "completions" / "stats-0.json").write_text(json.dumps({"rows_total": 5}))
    (out / "telemetry-shard0-1796070304-abcdef.jsonl").write_text("{}")
    return out


def test_the_new_output_says_the_same_in_fewer_parts_and_the_old_one_is_untouched(out: Path, tmp_path: Path) -> None:
    before, new = tree(out), tmp_path / "new"
    result = compact(out, new)
    assert_says_the_same(out, new)
    assert tree(out) == before
    assert (result.parts_read, result.parts, result.succeeded, result.failed, result.superseded) == (3, 2, 3, 2, 4)
    records = [row for path in parts_in(new) for row in pq.read_table(path).column("id").to_pylist()]
    assert sorted(records) == ["v", "w", "x", "y", "z"]
    for name in ("completions/shard-0.done", "completions/stats-0.json", "telemetry-shard0-1796070304-abcdef.jsonl"):
        assert (new / name).read_bytes() == (out / name).read_bytes()
    assert not list(tmp_path.glob(".tmp-*"))


def test_the_schema_that_a_run_would_go_on_with_is_kept_also_if_none_of_its_rows_are(tmp_path: Path) -> None:
    out, new = tmp_path / "out", tmp_path / "new"
    put_part(out, 0, [row("x", a=1)], SCHEMA)
    put_part(out, 1, [row("x", "an error that the success before it outweighs")], WIDER)
    compact(out, new)
    assert pq.read_schema(parts_in(new)[-1]).equals(WIDER)
    assert_says_the_same(out, new)
    with ParquetSink(new) as sink:
        sink.append(row("y", b=["text"]))
        sink.append(row("z", b=5))
    assert pq.read_schema(parts_in(new)[-1]).equals(WIDER)
    assert dict(read_output(new))["y"] == {"a": None, "b": ["text"]}
    assert "z" in errors_in(new)


@pytest.mark.parametrize("part_rows", [1, 7, 100, 100_000])
def test_many_small_parts_of_any_history_become_few(tmp_path: Path, part_rows: int) -> None:
    chance = random.Random(part_rows)
    out, new = tmp_path / "out", tmp_path / "new"
    for number in range(60):
        ids = [f"r{chance.randrange(150)}" for _ in range(chance.randrange(1, 8))]
        wide = number > 30 and chance.random() < 0.8
        rows = [
            row(id_, "http 500") if chance.random() < 0.4 else row(id_, a=number, **({"b": [id_]} if wide else {}))
            for id_ in ids
        ]
        path = put_part(out, number, rows, WIDER if wide else SCHEMA)
        if chance.random() < 0.2:
            (out / layout.sidecar_of(path.name)).unlink()
    result = compact(out, new, part_rows)
    assert_says_the_same(out, new)
    assert all(pq.read_metadata(path).num_rows <= part_rows for path in parts_in(new))
    assert len(parts_in(new)) == result.parts <= (result.succeeded + result.failed) // part_rows + 2
    assert pq.read_schema(parts_in(new)[-1]).equals(pq.read_schema(parts_in(out)[-1]))


def test_an_unreadable_part_is_left_out_and_named(out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (out / "part-0.parquet").write_bytes(b"PAR1 torn")
    assert compact(out, tmp_path / "new").unreadable == ["part-0.parquet"]
    assert "part-0.parquet" in caplog.text
    assert_says_the_same(out, tmp_path / "new")


def test_a_part_without_errors_column_stays_one(out: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["foreign"], "a": [7]}), out / "part-0.parquet")
    compact(out, tmp_path / "new")
    assert_says_the_same(out, tmp_path / "new")


def test_a_directory_that_is_there_and_empty_will_do_and_one_that_is_not_will_not(out: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    compact(out, new)
    before = tree(new)
    with pytest.raises(ValueError, match="not empty"):
        compact(out, new)
    with pytest.raises(ValueError, match="the output itself"):
        compact(out, str(out) + "/")
    assert tree(new) == before


def test_an_output_that_a_run_still_writes_is_refused(out: Path, tmp_path: Path) -> None:
    with ParquetSink(out) as sink:
        sink.append(row("u", a=1))
        sink.write_stats((0, 1), {})
        with pytest.raises(ValueError, match="is going on or was cut off"):
            compact(out, tmp_path / "new")
    compact(out, tmp_path / "new")
    assert_says_the_same(out, tmp_path / "new")


def test_nothing_is_left_of_an_attempt_that_fails(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(part, "sidecar_bytes", fail)
    for new in (str(tmp_path / "new"), "memory://compact-fails/new"):
        with pytest.raises(OSError, match="disk full"):
            compact(out, new)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.undo()
    compact(out, "memory://compact-fails/new")
    assert dict(read_output("memory://compact-fails/new")) == dict(read_output(out))


@pytest.mark.parametrize(
    ("out_name", "part_rows", "reason"), [("missing", 1, "no readable parts"), ("out", 0, "at least 1")]
)
def test_what_cannot_work_is_said_and_makes_nothing(
    out: Path, tmp_path: Path, out_name: str, part_rows: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        compact(tmp_path / out_name, tmp_path / "new", part_rows)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_command_says_what_it_did(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args([str(out), str(tmp_path / "new"), "--part-rows", "2"])
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("3 parts -> 3: 3 rows, 2 errors, 4 superseded")
    assert run(arguments) == 2
    assert "not empty" in capsys.readouterr().err
