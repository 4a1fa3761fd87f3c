"""read_output and existing_ids on outputs made by hand: who wins, in which order, and what is skipped."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from saturate.sinks import ParquetSink, existing_ids, layout, read_output, resume


def write_part(out: Path, number: int, rows: list[dict[str, Any]], sidecar: bool = True) -> Path:
    name = f"part-1796070304{number:03d}-000000-97cd3504.parquet"
    (out / "_manifest").mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, out / name)
    if sidecar:
        pq.write_table(table.select(["id", "error"]), out / layout.sidecar_of(name))
    return out / name


def ok(id_: str, **columns: Any) -> dict[str, Any]:
    return {"id": id_, "error": None, **columns}


def failed(id_: str) -> dict[str, Any]:
    return {"id": id_, "error": "http 500", "n": None}


def test_a_success_wins_over_errors_and_a_later_success_over_an_earlier(out: Path) -> None:
    write_part(out, 1, [failed("a"), ok("b", n=1), ok("c", n=1)])
    write_part(out, 2, [ok("a", n=2), failed("b"), ok("c", n=2), failed("d")])
    assert list(read_output(out)) == [("a", {"n": 2}), ("b", {"n": 1}), ("c", {"n": 2})]
    assert existing_ids(out) == {"a", "b", "c", "d"}
    assert existing_ids(out, retry_errors=True) == {"a", "b", "c"}


def test_ids_come_in_the_order_of_first_sight_and_rows_with_the_columns_of_their_own_part(out: Path) -> None:
    write_part(out, 1, [failed("z"), ok("y", n=1)])
    write_part(out, 2, [ok("x", n=2, m="new"), ok("z", n=3, m=None), ok("x", n=4, m="twice")])
    assert list(read_output(out)) == [
        ("z", {"n": 3, "m": None}),
        ("y", {"n": 1}),
        ("x", {"n": 4, "m": "twice"}),
    ]


def test_rows_of_large_parts_keep_their_order(out: Path) -> None:
    write_part(out, 1, [failed(f"r{n}") if n % 7 == 0 else ok(f"r{n}", n=n) for n in range(5000)])
    write_part(out, 2, [ok(f"r{n}", n=n) for n in range(0, 5000, 7)])
    assert list(read_output(out)) == [(f"r{n}", {"n": n}) for n in range(5000)]


def test_an_empty_error_is_a_success_for_reader_and_resume_alike(out: Path) -> None:
    write_part(out, 1, [{"id": "a", "error": "", "n": 1}])
    assert list(read_output(out)) == [("a", {"n": 1})]
    assert existing_ids(out, retry_errors=True) == {"a"}


def test_unreadable_files_are_skipped_with_one_line_and_their_rows_are_not_done(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_part(out, 1, [ok("a", n=1)])
    for number in (2, 3):
        torn = write_part(out, number, [ok(f"b{number}", n=1)], sidecar=False)
        torn.write_bytes(torn.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING, "saturate"):
        assert existing_ids(out) == {"a"}
    assert len(caplog.records) == 1
    assert "2 unreadable files" in caplog.text
    assert [id_ for id_, _ in read_output(out)] == ["a"]


@pytest.mark.parametrize("damage", ["missing", "truncated", "emptied"])
@pytest.mark.parametrize("recorded_size", [True, False])
def test_a_sidecar_whose_part_is_gone_or_torn_does_not_make_its_ids_done(
    out: Path, damage: str, recorded_size: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if recorded_size:
        with ParquetSink(out) as sink:
            sink.append(ok("a", n=1))
        part = next(path for path in out.iterdir() if layout.is_part(path.name))
    else:
        part = write_part(out, 1, [ok("a", n=1)])
    assert ParquetSink(out).existing_ids() == {"a"}
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[: 0 if damage == "emptied" else -20])
    assert ParquetSink(out).existing_ids() == set()
    assert existing_ids(out) == {"a"}
    assert "1 ids have a sidecar" in caplog.text


def test_a_part_that_was_rewritten_is_believed_over_its_sidecar(out: Path) -> None:
    with ParquetSink(out) as sink:
        sink.append(ok("a", n=1))
    part = next(path for path in out.iterdir() if layout.is_part(path.name))
    pq.write_table(pa.Table.from_pylist([ok("a", n=1), ok("b", n=2)]), part, compression="none")
    assert ParquetSink(out).existing_ids() == {"a", "b"}


def test_a_part_without_a_sidecar_is_scanned(out: Path) -> None:
    write_part(out, 1, [ok("a", n=1), failed("b")], sidecar=False)
    assert ParquetSink(out).existing_ids() == {"a", "b"}
    assert ParquetSink(out).existing_ids(retry_errors=True) == {"a"}


def test_a_merged_sidecar_adds_its_ids_but_proves_nothing(out: Path) -> None:
    write_part(out, 1, [ok("a", n=1)], sidecar=False)
    pq.write_table(pa.Table.from_pylist([ok("a"), ok("gone")]), out / "_manifest" / "ids-all.parquet")
    assert existing_ids(out) == {"a", "gone"}
    assert ParquetSink(out).existing_ids() == {"a"}


def test_a_part_without_an_error_column_has_rows_but_no_done_ids(out: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "n": [1]}), write_part(out, 1, [ok("x")], sidecar=False))
    assert list(read_output(out)) == [("a", {"n": 1})]
    assert existing_ids(out) == set()


@pytest.mark.parametrize(
    "name", ["part-1.parquet.tmp", "xpart-1.parquet", ".tmp-part-1.parquet", "part-1.journal", "notes.txt"]
)
def test_files_with_other_names_are_ignored(out: Path, name: str) -> None:
    write_part(out, 1, [ok("a", n=1)])
    (out / name).write_bytes(b"not parquet")
    (out / "_state").mkdir()
    write_part(out / "_state", 1, [ok("nested", n=1)])
    assert ParquetSink(out).existing_ids() == {"a"}
    assert [id_ for id_, _ in read_output(out)] == ["a"]


@pytest.mark.parametrize("name", ["part-1-ab.parquet", "part-1796070304206-97cd3504.parquet", "part-x y.parquet"])
def test_parts_are_recognised_by_their_beginning_and_end_only(out: Path, name: str) -> None:
    write_part(out, 1, [ok("a", n=1)], sidecar=False).rename(out / name)
    assert existing_ids(out) == {"a"}


def test_foreign_types_of_id_and_error_are_read(out: Path) -> None:
    part = write_part(out, 1, [ok("x")], sidecar=False)
    table = pa.table({"n": [1], "error": pa.nulls(1), "id": pa.array(["a"], pa.large_string())})
    pq.write_table(table, part, compression="snappy", version="1.0")
    assert existing_ids(out) == {"a"}
    assert list(read_output(out)) == [("a", {"n": 1})]


def test_an_empty_part_is_no_trouble(out: Path) -> None:
    nothing = pa.array([], pa.string())
    pq.write_table(pa.table({"id": nothing, "error": nothing}), write_part(out, 1, [ok("x")], sidecar=False))
    write_part(out, 2, [ok("a", n=1)])
    assert [id_ for id_, _ in read_output(out)] == ["a"]


def test_a_part_that_another_shard_lands_during_the_listing_is_not_taken_for_lost(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def land(row_id: str) -> None:
        with ParquetSink(out) as other:
            other.append({"id": row_id, "error": None})

    land("before")
    listing, listed = resume._Index._list, []

    def list_and_land(self: Any, directory: str) -> dict[str, int]:
        found = listing(self, directory)
        listed.append(directory)
        if len(listed) == 1:
            land("meanwhile")
        return found

    monkeypatch.setattr(resume._Index, "_list", list_and_land)
    with caplog.at_level(logging.WARNING):
        assert "before" in ParquetSink(out).existing_ids()
    assert "no whole part" not in caplog.text


class Entries(list, contextlib.AbstractContextManager):  # type: ignore[type-arg]
    def __exit__(self, *raised: object) -> None:
        pass


def test_a_file_that_another_shard_renames_during_the_listing_does_not_empty_it(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part(out, 1, [ok("a")])
    scandir = os.scandir

    def scan_and_rename(directory: str) -> Any:
        passing = Path(directory) / ".tmp-part-of-another-shard"
        passing.write_bytes(b"half")
        with scandir(directory) as found:
            entries = Entries(found)
        passing.unlink()
        return entries

    monkeypatch.setattr(os, "scandir", scan_and_rename)
    assert existing_ids(out) == {"a"}


class OtherShardsAtWork(LocalFileSystem):
    """Lists like some remote file systems: an error of one file that went away is the listing's."""

    protocol = "othershards"
    cachable = False
    raced: ClassVar[int] = 0

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        # Older releases of fsspec take only file:// off.
        return str(super()._strip_protocol(str(path).partition("://")[2] or path))

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        if type(self).raced:
            type(self).raced -= 1
            raise FileNotFoundError(path + "/.tmp-part-of-another-shard")
        return super().ls(path, detail=detail, **options)


def test_a_remote_listing_that_met_a_rename_is_repeated(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_part(out, 1, [ok("a")])
    fsspec.register_implementation("othershards", OtherShardsAtWork, clobber=True)
    monkeypatch.setattr(OtherShardsAtWork, "raced", 3)
    assert existing_ids(f"othershards://{out}") == {"a"}
    assert existing_ids(f"othershards://{out}/nothing") == set()
    monkeypatch.setattr(OtherShardsAtWork, "raced", 100)
    with pytest.raises(FileNotFoundError):
        existing_ids(f"othershards://{out}")
