"""pump(): a dataset in, a dataset out, and the same call again resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

import saturate
from saturate import Fixed, ParquetSink, Stats, existing_ids, pump, read_output
from saturate.simulate import Faults, Simulator
from tests.conftest import chat, text, texts, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


def run(server: Simulator, rows: Any, output: Any, **kwargs: Any) -> Stats:
    kwargs.setdefault("window", Fixed(8))
    kwargs.setdefault("signal_source", "none")
    return pump(rows, chat, text, server.endpoint, output, **kwargs)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_every_row_lands_and_the_same_call_again_sends_nothing(tmp_path, count):
    with Simulator(latency_s=0) as server:
        stats = run(server, texts(count), tmp_path / "out", id_key="text")
        assert (stats.rows_total, stats.rows_processed, stats.rows_failed) == (count, count, 0)
        assert stats.completion_tokens == 4 * count
        landed = dict(read_output(tmp_path / "out"))
        assert set(landed) == {row["text"] for row in texts(count)}
        assert all(set(row) == {"answer"} for row in landed.values())
        again = run(server, texts(count), tmp_path / "out", id_key="text")
        assert (again.rows_total, again.rows_done_prior, again.rows_processed) == (count, count, 0)
        assert len(server.received) == count


def test_every_row_an_error_is_a_run_that_ends_with_error_rows(tmp_path):
    with Simulator(latency_s=0, faults=Faults("error:status=400,body=too long")) as server:
        stats = run(server, texts(5), tmp_path / "out")
        assert (stats.rows_processed, stats.rows_failed) == (0, 5)
        assert list(read_output(tmp_path / "out")) == []
        assert run(server, texts(5), tmp_path / "out").rows_done_prior == 5
        server.faults = Faults()
        healed = run(server, texts(5), tmp_path / "out", retry_errors=True)
        assert (healed.rows_done_prior, healed.rows_processed) == (0, 5)
        assert len(list(read_output(tmp_path / "out"))) == 5


def test_repeats_are_sent_once_and_counted(tmp_path):
    with Simulator(latency_s=0) as server:
        stats = run(server, texts(3) + texts(3), tmp_path / "out")
        assert (stats.rows_total, stats.rows_deduped, stats.rows_processed) == (6, 3, 3)
        assert len(server.received) == 3


def test_rows_may_be_tuples_with_ids_and_ids_may_come_from_a_function(tmp_path):
    with Simulator(latency_s=0) as server:
        run(server, [("a", {"text": "x"}), ("b", {"text": "x"})], tmp_path / "one")
        assert existing_ids(tmp_path / "one") == {"a", "b"}
        run(server, texts(2), tmp_path / "two", id_fn=lambda row: row["text"].upper())
        assert existing_ids(tmp_path / "two") == {"ROW 0", "ROW 1"}


def test_a_result_that_cannot_be_stored_is_an_error_row_its_tokens_counted(tmp_path):
    def parse(row: dict[str, Any], response: Any) -> dict[str, Any]:
        return {"n": 2**70 if row["text"] == "row 1" else 1}

    with Simulator(latency_s=0) as server:
        stats = pump(texts(3), chat, parse, server.endpoint, tmp_path / "out", window=Fixed(1), id_key="text")
        assert (stats.rows_processed, stats.rows_failed, stats.completion_tokens) == (2, 1, 12)
        assert existing_ids(tmp_path / "out") == {"row 0", "row 1", "row 2"}
        assert existing_ids(tmp_path / "out", retry_errors=True) == {"row 0", "row 2"}
        assert dict(read_output(tmp_path / "out")) == {"row 0": {"n": 1}, "row 2": {"n": 1}}


@pytest.mark.parametrize("value", [{"u": "\ud800"}, {"d": {"x": {}}}, {"d": {1: 2}}, {"o": object()}, {"s": {1, "a"}}])
def test_no_value_ends_a_run_or_poisons_its_resume(tmp_path, value):
    def parse(row: dict[str, Any], response: Any) -> dict[str, Any]:
        return value if row["text"] == "row 2" else {"fine": row["text"]}

    with Simulator(latency_s=0) as server:
        stats = pump(texts(5), chat, parse, server.endpoint, tmp_path / "out", window=Fixed(2))
        assert (stats.rows_processed, stats.rows_failed) == (4, 1)
        again = pump(texts(5), chat, parse, server.endpoint, tmp_path / "out", window=Fixed(2), retry_errors=True)
        assert (again.rows_done_prior, again.rows_failed) == (4, 1)


@pytest.mark.parametrize("name", ["a[1]*?", "mit Leerzeichen", "日本語", "a%20b#c"])
def test_any_directory_name_resumes(tmp_path, name):
    with Simulator(latency_s=0) as server:
        run(server, texts(3), tmp_path / name)
        assert run(server, texts(3), str(tmp_path / name)).rows_done_prior == 3
        assert len(server.received) == 3


class CallOrder:
    """A sink of the user's own that writes down what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.records: list[dict[str, Any]] = []

    def _note(self, name: str) -> None:
        if not self.calls or self.calls[-1] != name:
            self.calls.append(name)

    def begin_run(self, shard):
        self._note("begin_run")

    def existing_ids(self, retry_errors=False):
        self._note("existing_ids")
        return {"row 0"}

    def append(self, record):
        self._note("append")
        self.records.append(record)

    def flush(self):
        self._note("flush")

    def write_telemetry(self, shard, lines):
        self._note("write_telemetry")

    def write_stats(self, shard, stats):
        self._note("write_stats")

    def write_marker(self, shard):
        self._note("write_marker")


def test_any_object_with_three_methods_is_a_sink_and_is_asked_in_order():
    sink = CallOrder()
    with Simulator(latency_s=0) as server:
        stats = run(server, texts(4), sink, id_key="text")
    assert sink.calls == [
        "begin_run", "existing_ids", "append", "flush", "write_telemetry", "write_stats", "write_marker",
    ]  # fmt: skip
    assert stats.rows_done_prior == 1
    assert sorted(r["id"] for r in sink.records) == ["row 1", "row 2", "row 3"]


def test_a_sink_that_refuses_a_row_when_probed_gets_an_error_row_instead():
    class Probing(CallOrder):
        def probe(self, record):
            if record["id"] == "row 2":
                raise ValueError("not here")

    sink = Probing()
    with Simulator(latency_s=0) as server:
        stats = run(server, texts(4), sink, id_key="text")
    assert (stats.rows_processed, stats.rows_failed) == (2, 1)
    assert {r["id"]: r["error"] for r in sink.records}["row 2"] == "parse output not storable: not here"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "rows must be an iterable"),
        ({"rows": {"text": "x"}}, "for one row pass"),
        ({"endpoint": "localhost:8000/v1"}, "endpoint must start with http"),
        ({"window": 8}, r"Fixed\(8\)"),
        ({"shard": (2, 2)}, "rank 2 of world 2"),
        ({"shard": (0, 0)}, "rank 0 of world 0"),
        ({"shard": 3}, "pair"),
        ({"route": "embeddings"}, 'starts with "/"'),
        ({"signal_source": "off"}, "signal_source"),
        ({"read_timeout": 0}, "read_timeout"),
        ({"to_request": None}, "to_request"),
        ({"parse": dict}, "parse"),
        ({"output": 7}, "output must be a path"),
        ({"prepare_workers": 1.5}, "prepare_workers"),
        ({"id_fn": "id"}, "id_fn"),
        ({"flush_every": 0}, "flush_every"),
    ],
)
def test_misuse_fails_at_the_call_and_writes_nothing(tmp_path, change, message):
    arguments = {
        "rows": texts(1),
        "to_request": chat,
        "parse": text,
        "endpoint": "http://127.0.0.1:9/v1",
        "output": tmp_path / "out",
        **change,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        pump(**arguments)
    assert not (tmp_path / "out").exists()


def test_its_docstring_names_every_parameter_and_warns_that_shard_selects_nothing():
    import inspect

    for name in inspect.signature(pump).parameters:
        assert f"{name}:" in pump.__doc__, name
    assert "does NOT select input" in pump.__doc__


def test_the_signature_is_the_public_one():
    import inspect

    parameters = inspect.signature(pump).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == (
        "rows to_request parse endpoint output window shard flush_every read_timeout route headers retry_errors "
        "id_key id_fn signal_source schema prepare_workers"
    ).split()
    assert list(json.loads(Stats().to_json())) == (
        "rows_total rows_done_prior rows_processed rows_failed rows_deduped prompt_tokens completion_tokens elapsed_s "
        "final_limit input_bound breaker_opens hints cut_reasons bound_by tokens_per_sec"
    ).split()


def test_every_public_name_is_there():
    for name in (
        "pump Stats Done stream skip_done shard_select prepare_ahead content_id through drain read_output existing_ids "
        "AdaptiveClient AdaptiveLimiter Auto Fixed Obs ParquetSink FileSink Request make_json_request "
        "make_multipart_request FatalTransportError"
    ).split():
        assert name in saturate.__all__ and hasattr(saturate, name)


def test_a_source_that_raises_lands_what_came_before_and_writes_no_marker(tmp_path):
    def rows():
        yield from texts(6)
        raise OSError("source gone")

    with Simulator(latency_s=0.01) as server:
        with pytest.raises(OSError, match="source gone"):
            run(server, rows(), tmp_path / "out", id_key="text")
        assert len(existing_ids(tmp_path / "out")) == 6
        assert not (tmp_path / "out" / "completions").exists()


def test_telemetry_stats_and_marker_are_written_even_for_a_short_run(tmp_path):
    with Simulator(latency_s=0) as server:
        run(server, texts(3), tmp_path / "out", shard=(1, 4))
    out = tmp_path / "out"
    assert (out / "completions" / "shard-1.done").read_bytes() == b"done"
    stats = json.loads((out / "completions" / "stats-1.json").read_text())
    assert (stats["rows_processed"], stats["rank"], stats["world"]) == (3, 1, 4)
    [telemetry] = out.glob("telemetry-shard1-*.jsonl")
    tick = json.loads(telemetry.read_text().splitlines()[0])
    assert set(tick) >= set(
        "t limit inflight waiting running bp ok input_bound tok_s kv hits preempts reason latency_s bound_by source_s "
        "prep_s prep_n prep_workers loop_lag_s".split()
    )
    assert sum(json.loads(line)["ok"] for line in telemetry.read_text().splitlines()) == 3


def test_it_works_as_written_in_the_readme(tmp_path):
    database: dict[str, Any] = {}
    rows = texts(5)
    with Simulator(latency_s=0) as server:
        stats = pump(rows, chat, text, endpoint=server.endpoint, output=str(tmp_path / "out/"))
        assert stats.rows_processed == 5
        with ParquetSink(tmp_path / "other") as sink:
            with saturate.AdaptiveClient(server.endpoint, window=saturate.Auto()) as client:
                todo = saturate.skip_done(saturate.stream(rows), sink)
                for done in saturate.through(client, todo, chat, text):
                    database[done.id] = done.out
        with saturate.AdaptiveLimiter(window=saturate.Auto()) as limiter:
            with limiter.slot():
                result = len(database)
            limiter.observe(ok=True, tokens=result)
    assert len(database) == 5


def test_two_shards_into_one_directory_cover_the_rows_once(tmp_path):
    def shard(rank: int) -> None:
        share = saturate.shard_select(saturate.stream(texts(40), id_key="text"), rank, 2)
        run(server, share, tmp_path / "out", shard=(rank, 2))

    with Simulator(latency_s=0.005) as server:
        threads = [threading.Thread(target=shard, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(existing_ids(tmp_path / "out")) == 40
        assert len(server.received) == 40


# -- in processes of their own

SCRIPT = """
import sys
from saturate import pump, Fixed
def to_request(row): return {"model": "m", "messages": [{"role": "user", "content": row["text"]}], "max_tokens": 2}
def parse(row, r): return {"answer": r["choices"][0]["message"]["content"]}
endpoint, output, count = sys.argv[1:4]
pump(({"text": f"row {i}"} for i in range(int(count))), to_request, parse, endpoint, output, window=Fixed(16),
     id_key="text", signal_source="none")
"""


def start(server: Simulator, output: Any, count: int, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, server.endpoint, str(output), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k not in saturate.AGENT_ENV_VARS}, **env},
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_land_what_was_answered_and_the_next_run_resumes(tmp_path, number, status):
    with Simulator(latency_s=0.05) as server:
        process = start(server, tmp_path / "out", 400)
        assert wait_until(lambda: len(server.served) >= 100, 30)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == status
        landed = existing_ids(tmp_path / "out")
        assert set(landed) and len(landed) >= len(server.served) - 16
        rest = start(server, tmp_path / "out", 400)
        rest.communicate(timeout=60)
        assert rest.returncode == 0
        assert len(dict(read_output(tmp_path / "out"))) == 400
        assert len(server.served) - 400 <= 16


def test_a_kill_loses_nothing_and_pays_no_more_than_the_window_twice(tmp_path):
    with Simulator(latency_s=0.05) as server:
        process = start(server, tmp_path / "out", 400)
        assert wait_until(lambda: len(server.served) >= 150, 30)
        process.kill()
        process.communicate()
        rest = start(server, tmp_path / "out", 400)
        _, errors = rest.communicate(timeout=60)
        assert rest.returncode == 0, errors
        rows = dict(read_output(tmp_path / "out"))
        assert len(rows) == 400
        # the window, and the answers of the last milliseconds
        assert len(server.served) - 400 <= 16 + 4


def test_stdout_is_silent_for_people_and_one_json_line_for_agents(tmp_path):
    with Simulator(latency_s=0) as server:
        out, err = start(server, tmp_path / "out", 3).communicate(timeout=30)
        assert out == ""
        assert "[pump] done: 3 ok, 0 failed" in err
        out, err = start(server, tmp_path / "out", 3, AI_AGENT="1").communicate(timeout=30)
        assert json.loads(out)["rows_done_prior"] == 3 and out.count("\n") == 1
        assert "running the same command again resumes" in err
