"""Any fsspec store: written through a journal on the local disk, and waited for while it is away."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from saturate.sinks import ParquetSink, SinkError, existing_ids, layout, read_output
from saturate.sinks.store import RemoteStore, journal_directory, open_store

HERE = str(Path(__file__).parent)


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an output in a store that fails while `<directory>.broken` exists."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("FLAKY_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.register_implementation("flaky", "flaky_store.FlakyFileSystem", clobber=True)
    return f"flaky://{tmp_path}/store"


def broken(uri: str) -> Path:
    return Path(uri[len("flaky://") :] + ".broken")


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "error": None, "n": number} for number in range(count)]


def test_rows_land_in_a_remote_store_and_are_read_back(flaky: str, tmp_path: Path) -> None:
    with ParquetSink(flaky, flush_every=4) as sink:
        assert sink.existing_ids() == set()
        for row in rows(10):
            sink.append(row)
        sink.flush()
        sink.write_marker((0, 1))
    assert existing_ids(flaky) == {f"r{number}" for number in range(10)}
    assert [row["n"] for _, row in read_output(flaky)] == list(range(10))
    names = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert len(list(filter(layout.is_part, names))) == 3
    assert not any(name.startswith(".tmp-") for name in names)


def test_the_journal_of_a_remote_output_is_a_local_directory_named_after_its_uri(flaky: str, tmp_path: Path) -> None:
    store = open_store(flaky)
    assert Path(journal_directory(store, None)).parent == tmp_path / "cache" / "saturate" / "journal"
    assert Path(journal_directory(store, tmp_path / "mine")).parent == tmp_path / "mine"
    assert journal_directory(store, None) != journal_directory(open_store(flaky + "2"), None)
    with ParquetSink(flaky) as sink:
        sink.append(rows(1)[0])
        sink.write_stats((0, 1), {})
        assert len(list(Path(journal_directory(store, None)).iterdir())) == 1
    assert not Path(journal_directory(store, None)).exists()


def test_a_local_output_may_keep_its_journal_elsewhere_too(out: Path, tmp_path: Path) -> None:
    with ParquetSink(out, journal_dir=tmp_path / "mine") as sink:
        sink.append(rows(1)[0])
        sink.write_stats((0, 1), {})
        assert not (out / "_journal").exists()
        assert len(list((tmp_path / "mine").rglob("*.journal"))) == 1


def test_a_store_that_comes_back_is_waited_for_and_the_program_is_told(
    flaky: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken(flaky).touch()
    with ParquetSink(flaky) as sink:
        sink.append(rows(1)[0])

        def mend_once_told() -> None:
            for _ in range(2000):
                if "sink blocked for" in caplog.text:
                    break
                time.sleep(0.01)
            broken(flaky).unlink()

        mender = threading.Thread(target=mend_once_told)
        mender.start()
        with caplog.at_level(logging.WARNING, "saturate"):
            sink.flush()
        mender.join()
    assert "sink blocked for" in caplog.text
    assert "the store is away; retrying" in caplog.text
    assert existing_ids(flaky) == {"r0"}


def test_rows_are_taken_while_the_store_is_away(flaky: str) -> None:
    broken(flaky).touch()
    with ParquetSink(flaky, flush_every=100) as sink:
        for row in rows(2000):
            sink.append(row)
        broken(flaky).unlink()
    assert len(existing_ids(flaky)) == 2000


def test_a_store_that_stays_away_is_a_clear_error_and_the_next_run_lands_the_rows(flaky: str) -> None:
    sink = ParquetSink(flaky, give_up_after=0.3)
    for row in rows(10):
        sink.append(row)
    broken(flaky).touch()
    with pytest.raises(SinkError, match="the store is away.*run the same command"):
        sink.flush()
    with pytest.raises(SinkError):
        sink.append(rows(1)[0])
    with pytest.raises(SinkError):
        sink.close()
    broken(flaky).unlink()
    with ParquetSink(flaky) as again:
        assert again.existing_ids() == {f"r{number}" for number in range(10)}
    assert len(list(read_output(flaky))) == 10


def test_a_write_that_breaks_off_in_the_middle_leaves_no_torn_part(flaky: str, tmp_path: Path) -> None:
    with ParquetSink(flaky) as sink:
        sink.append(rows(1)[0])
        sink.flush()
        (tmp_path / "store.torn").touch()
        sink.append(rows(2)[1])
    assert existing_ids(flaky) == {"r0", "r1"}
    assert len(list(read_output(flaky))) == 2


def test_a_marker_that_cannot_be_written_raises_and_telemetry_does_not(flaky: str) -> None:
    sink = ParquetSink(flaky, give_up_after=0.2)
    sink.append(rows(1)[0])
    sink.flush()
    broken(flaky).touch()
    sink.write_telemetry((0, 1), ["{}"])
    with pytest.raises(SinkError, match="the store is away"):
        sink.write_marker((0, 1))
    with pytest.raises(SinkError):
        sink.close()


def test_telemetry_does_not_wait_behind_a_flush_to_a_store_that_is_away(flaky: str) -> None:
    sink = ParquetSink(flaky)
    sink.append(rows(1)[0])
    sink.flush()
    broken(flaky).touch()
    sink.append(rows(2)[1])
    flush = threading.Thread(target=sink.flush)
    flush.start()
    time.sleep(0.3)
    sink.write_telemetry((0, 1), ["{}"])
    assert flush.is_alive()
    broken(flaky).unlink()
    flush.join()
    sink.close()
    assert existing_ids(flaky) == {"r0", "r1"}


def test_a_file_system_class_of_the_main_module_is_refused_with_what_to_do(out: Path) -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "import fsspec\nfrom fsspec.implementations.local import LocalFileSystem\n"
            "class Mine(LocalFileSystem):\n    protocol = 'mine'\n"
            "fsspec.register_implementation('mine', Mine)\n"
            "from saturate.sinks import ParquetSink\nParquetSink('mine://x')",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "module of its own" in process.stderr.splitlines()[-1]


def test_a_store_inside_the_process_is_written_from_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    uri = f"memory://sink-{os.getpid()}-{time.monotonic_ns()}"
    with ParquetSink(uri, flush_every=3) as sink:
        assert sink.existing_ids() == set()
        for row in rows(7):
            sink.append(row)
        sink.flush()
        sink.write_stats((0, 1), {"rows_total": 7})
        sink.write_marker((0, 1))
    assert len(existing_ids(uri)) == 7
    assert [row["n"] for _, row in read_output(uri)] == list(range(7))


@pytest.mark.parametrize(("uri", "name"), [("s3://bucket/a[1]", "s3"), ("hf://buckets/o/n/x", "hf"), ("gs://b", "gs")])
def test_the_protocol_is_known_without_opening_the_store(uri: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: None)
    store = RemoteStore(uri)
    assert (store.protocol, store.local) == (name, False)


def test_new_outputs_on_the_hub_are_private_and_a_failure_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import huggingface_hub

    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda name, **options: asked.append((name, options)))
    open_store("hf://datasets/owner/name/sub/dir").prepare()
    assert asked == [("owner/name", {"repo_type": "dataset", "private": True, "exist_ok": True})]

    def refuse(name: str, **options: Any) -> None:
        raise PermissionError("no token")

    monkeypatch.setattr(huggingface_hub, "create_bucket", refuse, raising=False)
    open_store("hf://buckets/owner/name").prepare()
    assert "no token" in caplog.text
