"""FileSink: one file for each success."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from saturate.sinks import FileSink


def ok(id_: str, **columns: Any) -> dict[str, Any]:
    return {"id": id_, "error": None, **columns}


def test_a_success_is_a_file_and_an_error_is_none(out: Path) -> None:
    with FileSink(out) as sink:
        assert sink.existing_ids() == set()
        assert not out.exists()
        sink.append(ok("a", text="line\ntwo é"))
        sink.append({"id": "b", "error": "http 500"})
    assert [path.name for path in out.iterdir()] == ["a.txt"]
    assert (out / "a.txt").read_bytes() == "line\ntwo é".encode()
    assert sink.existing_ids() == sink.existing_ids(retry_errors=True) == {"a"}
    assert sink.rows_demoted == 0


def test_bytes_are_written_as_they_are_and_other_values_as_text(out: Path) -> None:
    sink = FileSink(out, ext=".bin", key="data")
    sink.append(ok("bytes", data=b"\xff\0"))
    sink.append(ok("number", data=12.5))
    assert (out / "bytes.bin").read_bytes() == b"\xff\0"
    assert (out / "number.bin").read_bytes() == b"12.5"


def test_odd_but_legal_ids_come_back(out: Path) -> None:
    ids = {"b c", "x.txt", "日本", "a:b", "star*", "[1]", "-x"}
    sink = FileSink(out)
    for id_ in ids:
        sink.append(ok(id_, text="t"))
    assert sink.existing_ids() == ids


@pytest.mark.parametrize("id_", ["", ".hidden", "a/b", "a\\b", "..", "nul\0", "x" * 300, "\ud800"])
def test_an_id_that_cannot_be_a_file_name_is_reported_and_the_run_goes_on(
    out: Path, id_: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FileSink(out)
    sink.append(ok(id_, text="t"))
    sink.append(ok("good", text="t"))
    assert sink.rows_demoted == 1
    assert "cannot be a file name" in caplog.text
    assert os.listdir(out) == ["good.txt"]


def test_a_missing_key_or_text_that_is_no_unicode_is_reported_and_the_run_goes_on(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FileSink(out)
    sink.append(ok("a", other="t"))
    sink.append(ok("b", text="\ud800"))
    sink.append(ok("good", text="t"))
    assert sink.rows_demoted == 2
    assert "no 'text'" in caplog.text
    assert sink.existing_ids() == {"good"}


def test_a_file_is_there_whole_or_not_at_all(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(out)
    sink.append(ok("a", text="old"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        sink.append(ok("a", text="new"))
    assert os.listdir(out) == ["a.txt"]
    assert (out / "a.txt").read_text() == "old"


def test_unfinished_and_foreign_files_are_no_ids(out: Path) -> None:
    sink = FileSink(out)
    sink.append(ok("a", text="t"))
    (out / ".tmp-1-2").write_text("")
    (out / ".hidden.txt").write_text("")
    (out / "b.md").write_text("")
    (out / "dir.txt").mkdir()
    (out / ".txt").write_text("")
    assert sink.existing_ids() == {"a"}


@pytest.mark.parametrize("ext", ["txt", "", ".a/b", ".."])
def test_an_extension_that_cannot_work_is_refused_at_the_call(out: Path, ext: str) -> None:
    with pytest.raises(ValueError, match="ext"):
        FileSink(out, ext=ext)
