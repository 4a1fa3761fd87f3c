"""ParquetSink: what is on disk after a run, and what a second run finds there."""

from __future__ import annotations

import collections
import enum
import json
import os
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saturate.sinks import ParquetSink, SinkError, existing_ids, read_output

pytestmark = pytest.mark.usefixtures("writer_in_a_thread")


def record(number: int, **columns: Any) -> dict[str, Any]:
    return {"id": f"r{number}", "error": None, **columns}


def parts_in(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if path.name.startswith("part-"))


def tree(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


def test_creating_a_sink_and_asking_an_empty_one_touches_nothing(out: Path) -> None:
    sink = ParquetSink(out)
    assert sink.existing_ids() == set()
    assert existing_ids(out) == set()
    assert list(read_output(out)) == []
    assert sink.flush()
    assert sink.close()
    assert not out.exists()


def test_a_record_is_in_a_part_with_a_sidecar_after_flush(out: Path) -> None:
    with ParquetSink(out) as sink:
        sink.append(record(1, text="a"))
        sink.append({"id": "r2", "error": "http 400: no"})
        sink.flush()
        (part,) = parts_in(out)
        sidecar = out / "_manifest" / f"ids-{part.name}"
        assert pq.read_table(part).to_pylist() == [
            {"id": "r1", "error": None, "text": "a"},
            {"id": "r2", "error": "http 400: no", "text": None},
        ]
        assert pq.read_table(sidecar).column_names == ["id", "error"]
        assert pq.ParquetFile(part).metadata.row_group(0).column(0).compression == "ZSTD"
        assert pq.ParquetFile(part).num_row_groups == 1
    assert existing_ids(out) == {"r1", "r2"}
    assert existing_ids(out, retry_errors=True) == {"r1"}
    assert list(read_output(out)) == [("r1", {"text": "a"})]


def test_names_follow_the_contract_and_nothing_else_is_left(out: Path) -> None:
    with ParquetSink(out, flush_every=2) as sink:
        sink.begin_run((0, 2))
        for number in range(5):
            sink.append(record(number))
        sink.flush()
        sink.write_telemetry((0, 2), ['{"t": 0}', '{"t": 2}'])
        sink.write_stats((0, 2), {"rows_total": 5})
        sink.write_marker((0, 2))
    names = tree(out)
    parts = {name for name in names if re.fullmatch(r"part-\d{13}-\d{6}-[0-9a-f]{8}\.parquet", name)}
    telemetry = {name for name in names if re.fullmatch(r"telemetry-shard0-\d{10}-[0-9a-f]{6}\.jsonl", name)}
    assert [pq.read_metadata(out / name).num_rows for name in sorted(parts)] == [2, 2, 1]
    assert [name.split("-")[2] for name in sorted(parts)] == ["000000", "000001", "000002"]
    assert len(telemetry) == 1
    sidecars = {f"_manifest/ids-{name}" for name in parts}
    completions = {"completions/shard-0.done", "completions/stats-0.json"}
    assert names == parts | telemetry | sidecars | completions | {"_manifest", "completions"}
    assert (out / "completions/shard-0.done").read_bytes() == b"done"
    assert json.loads((out / "completions/stats-0.json").read_text()) == {"rows_total": 5, "rank": 0, "world": 2}
    assert (out / telemetry.pop()).read_text() == '{"t": 0}\n{"t": 2}'


def test_each_run_of_a_shard_has_a_telemetry_file_of_its_own(out: Path) -> None:
    with ParquetSink(out) as sink:
        for _ in range(2):
            sink.begin_run((3, 4))
            sink.write_telemetry((3, 4), ["{}"])
            sink.write_telemetry((3, 4), ["{}", "{}"])
            sink.write_marker((3, 4))
    files = [path for path in out.iterdir() if path.name.startswith("telemetry-shard3-")]
    assert [path.read_text() for path in files] == ["{}\n{}"] * 2


def test_telemetry_is_rewritten_less_often_on_a_remote_store(out: Path) -> None:
    assert ParquetSink(out).telemetry_every_ticks == 30
    assert ParquetSink("memory://telemetry").telemetry_every_ticks == 150


def test_by_default_a_thousand_rows_are_one_part(out: Path) -> None:
    with ParquetSink(out) as sink:
        for number in range(1000):
            sink.append(record(number))
    assert len(parts_in(out)) == 1


def test_a_part_is_closed_when_it_has_enough_bytes(out: Path) -> None:
    with ParquetSink(out, flush_bytes=50_000) as sink:
        for number in range(20):
            sink.append(record(number, text=os.urandom(5000).hex()))
    assert len(parts_in(out)) >= 4
    assert len(existing_ids(out)) == 20


def test_a_part_is_closed_when_its_first_row_is_old_enough(out: Path) -> None:
    with ParquetSink(out, flush_seconds=0.05) as sink:
        sink.append(record(1))
        arrived = threading.Event()
        for _ in range(1000):
            if existing_ids(out) == {"r1"}:
                break
            arrived.wait(0.01)
        assert existing_ids(out) == {"r1"}


@pytest.mark.parametrize(
    "name", ["a[1]b", "star*", "what?", "two words", "ünïcode-日本", "-dash", "a%20b", "a'b\"c", "{x}", "a::b", "a#b"]
)
def test_any_path_works(tmp_path: Path, name: str) -> None:
    for number, out in enumerate([tmp_path / name, str(tmp_path / name)]):
        with ParquetSink(out) as sink:
            assert len(sink.existing_ids()) == number
            sink.append(record(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    assert [id_ for id_, _ in read_output(tmp_path / name)] == ["r0", "r1"]


def test_a_relative_path_means_the_directory_in_which_the_sink_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = ParquetSink("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with sink:
        sink.append(record(1))
    assert existing_ids(tmp_path / "out") == {"r1"}


def test_a_file_uri_is_a_local_path(out: Path) -> None:
    with ParquetSink(f"file://{out}") as sink:
        sink.append(record(1))
    assert existing_ids(out) == {"r1"}


def test_a_row_that_cannot_be_stored_is_an_error_row_and_nothing_else_suffers(out: Path) -> None:
    class Local:
        """Neither picklable nor storable."""

    with ParquetSink(out) as sink:
        sink.append(record(1, value="fine"))
        sink.append(record(2, value=Local()))
        sink.append(record(3, value=lambda: None))
        sink.append(record(4, value=2**70))
        sink.append(record(5, value="\ud800"))
        sink.append(record(6, value=threading))
        sink.append(record(7, value=Path("x")))
        sink.append(record(8, value="fine too"))
        sink.flush()
        assert sink.rows_demoted == 6
    assert sink.rows_demoted == 6
    assert dict(read_output(out)) == {"r1": {"value": "fine"}, "r8": {"value": "fine too"}}
    errors = {row["id"]: row["error"] for row in pq.read_table(parts_in(out)[0]).to_pylist() if row["error"]}
    assert set(errors) == {f"r{number}" for number in range(2, 8)}
    assert all(error.startswith("parse output not storable: ") for error in errors.values())
    assert ParquetSink(out).existing_ids() == {f"r{number}" for number in range(1, 9)}


class Colour(str, enum.Enum):
    RED = "red"


class Count(int):
    pass


def test_subclasses_of_plain_types_are_stored_as_the_plain_value(out: Path) -> None:
    pair = collections.namedtuple("pair", "a b")  # a class that the writer could not import
    output = {
        "colour": Colour.RED,
        "count": Count(3),
        "ordered": collections.OrderedDict(b=1, a=2),
        "default": collections.defaultdict(list, k=[1]),
        "pair": pair(1, 2),
        "bytes": bytearray(b"x"),
        "set": {5},
    }
    with ParquetSink(out) as sink:
        sink.append(record(1, **output))
    assert dict(read_output(out))["r1"] == {
        "colour": "red",
        "count": 3,
        "ordered": {"b": 1, "a": 2},
        "default": {"k": [1]},
        "pair": [1, 2],
        "bytes": b"x",
        "set": [5],
    }


def test_a_record_is_taken_as_it_is_when_it_is_appended(out: Path) -> None:
    changing = record(1, n=1)
    with ParquetSink(out) as sink:
        sink.append(changing)
        changing["n"] = 2
    assert dict(read_output(out)) == {"r1": {"n": 1}}


def test_a_record_without_an_id_is_refused_at_the_call(out: Path) -> None:
    with pytest.raises(KeyError):
        ParquetSink(out).append({"error": None})
    with ParquetSink(out) as sink:
        sink.append(record(1))
        with pytest.raises(KeyError):
            sink.append({"error": None})


def test_a_second_run_keeps_the_types_of_the_first(out: Path) -> None:
    for value in (1, "not a number", 3):
        with ParquetSink(out) as sink:
            sink.append(record(int(value == 3) + 2 * isinstance(value, str), n=value))
    assert dict(read_output(out)) == {"r0": {"n": 1}, "r1": {"n": 3}}
    assert pq.read_schema(parts_in(out)[-1]).field("n").type == pa.int64()


def test_a_declared_schema_is_checked_at_the_call_and_kept(out: Path) -> None:
    with pytest.raises(ValueError, match="'error'"):
        ParquetSink(out, schema=pa.schema([("id", pa.string())]))
    with pytest.raises(TypeError, match="pyarrow"):
        ParquetSink(out, schema={"id": "string"})  # type: ignore[arg-type]
    schema = pa.schema([("n", pa.int16()), ("id", pa.string()), ("error", pa.string())])
    with ParquetSink(out, schema=schema) as sink:
        sink.append(record(1, n=2.0))
        sink.append(record(2, n=2.5))
    assert pq.read_schema(parts_in(out)[0]) == schema
    assert dict(read_output(out)) == {"r1": {"n": 2}}


@pytest.mark.parametrize("wrong", [{"flush_every": 0}, {"read_workers": 0}, {"flush_bytes": -1}, {"flush_seconds": 0}])
def test_a_number_that_cannot_work_is_refused_at_the_call(out: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ParquetSink(out, **wrong)


def test_an_unknown_protocol_is_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="nosuch"):
        ParquetSink("nosuch://x")


def test_a_sink_can_be_pickled_and_the_copy_has_a_writer_of_its_own(out: Path) -> None:
    with ParquetSink(out, flush_every=3) as sink:
        sink.append(record(1))
        with pickle.loads(pickle.dumps(sink)) as copy:
            assert copy.rows_demoted == 0
            copy.append(record(2))
    assert existing_ids(out) == {"r1", "r2"}


def test_a_closed_sink_can_be_used_again(out: Path) -> None:
    sink = ParquetSink(out)
    for number in range(2):
        sink.append(record(number, bad=object()))
        assert sink.close()
    assert sink.existing_ids() == {"r0", "r1"}
    assert sink.rows_demoted == 2


def test_a_sink_that_is_dropped_lands_what_it_was_given(out: Path) -> None:
    sink = ParquetSink(out)
    sink.append(record(1))
    del sink
    for _ in range(1000):
        if existing_ids(out):
            break
        threading.Event().wait(0.01)
    assert existing_ids(out) == {"r1"}


def test_many_threads_may_append(out: Path) -> None:
    def append(start: int) -> None:
        for number in range(start, start + 200):
            sink.append(record(number, text="x" * 100))

    with ParquetSink(out, flush_every=100) as sink:
        threads = [threading.Thread(target=append, args=(start,)) for start in range(0, 1000, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(read_output(out))) == 1000
    assert sum(pq.read_metadata(part).num_rows for part in parts_in(out)) == 1000


def test_records_larger_than_the_socket_arrive(out: Path) -> None:
    with ParquetSink(out) as sink:
        for number in range(5):
            sink.append(record(number, text=str(number) * 3_000_000))
    assert {id_: row["text"][:1] for id_, row in read_output(out)} == {f"r{n}": str(n) for n in range(5)}


def test_flush_and_close_give_up_waiting_when_told_to_and_the_rows_land_all_the_same(out: Path) -> None:
    sink = ParquetSink(out)
    sink.append(record(1))
    assert sink.close(timeout=0.0) is False
    for _ in range(1000):
        if existing_ids(out):
            break
        threading.Event().wait(0.01)
    assert existing_ids(out) == {"r1"}


def test_the_directory_cannot_be_made_is_a_clear_error_after_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = ParquetSink(tmp_path / "file" / "out", give_up_after=0.1)
    with pytest.raises(SinkError, match="Not a directory"):
        for number in range(1_000_000):
            sink.append(record(number))
    with pytest.raises(SinkError):
        sink.close()


def test_new_parts_sort_after_all_that_are_there_also_when_the_clock_is_behind(out: Path) -> None:
    with ParquetSink(out) as sink:
        sink.append(record(0, price=1))
    (first,) = parts_in(out)
    ahead = "part-9000000000000-000000-abcdef01.parquet"
    first.rename(out / ahead)
    (out / "_manifest" / f"ids-{first.name}").rename(out / "_manifest" / f"ids-{ahead}")
    with ParquetSink(out, flush_every=1) as sink:
        for number in (0, 1, 2):
            sink.append(record(number, price=number + 10))
    parts = parts_in(out)
    assert parts[0].name == ahead
    assert [pq.read_table(part).column("id").to_pylist() for part in parts] == [["r0"], ["r0"], ["r1"], ["r2"]]
    assert dict(read_output(out))["r0"] == {"price": 10}
