"""What people who run rows through a model reported in public trackers, as one test for each kind of failure.

The number in a name is the case's; the docstring says the kind. Each runs the real thing: a real server with the
fault, real parquet, a real process with a real signal where the report had one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import os
import pickle
import signal
import threading
import time
from typing import Any

import pytest

from saturate import (
    AdaptiveClient,
    Auto,
    Fixed,
    ParquetSink,
    drain,
    existing_ids,
    pump,
    read_output,
    stream,
    through,
)
from saturate.flow import monitor
from saturate.report.progress import Progress
from saturate.simulate import Faults, Simulator, answer
from tests.conftest import chat, text, texts, wait_until
from tests.field.conftest import JOB, records, stored_ids

pump_module = importlib.import_module("saturate.pump")  # the name in the package is the function

pytestmark = pytest.mark.usefixtures("nothing_left")


def quick_client(server: Simulator, window: int = 4, **options: Any) -> AdaptiveClient:
    options = {"signal_source": "none", "tick_s": 0.05, **options}
    return AdaptiveClient(server.endpoint, window=Fixed(window), **options)


def quick_pump(server: Simulator, rows: Any, output: Any, **options: Any) -> Any:
    options = {"window": Fixed(4), "id_key": "text", "signal_source": "none", **options}
    return pump(rows, options.pop("to_request", chat), options.pop("parse", text), server.endpoint, output, **options)


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """pump() with ticks of 50 ms: a refused request's slot stays closed for one."""
    monkeypatch.setattr(pump_module, "AdaptiveClient", functools.partial(AdaptiveClient, tick_s=0.05))


def given(prompt: str) -> str:
    """The simulated model's answer to a row of `texts`, which asks for four tokens."""
    return answer(prompt, 4)


def test_a1_a_partly_failed_batch_pays_again_only_for_what_failed(tmp_path):
    """Whatever succeeded is never paid for again because something next to it failed."""
    faults = Faults("error:status=400,contains=row 3")
    with Simulator(latency_s=0, faults=faults) as server:
        first = quick_pump(server, texts(40), tmp_path / "out")
        assert (first.rows_processed, first.rows_failed) == (29, 11)  # row 3 and row 30 to row 39
        server.faults = Faults()
        again = quick_pump(server, texts(40), tmp_path / "out", retry_errors=True)
        assert (again.rows_done_prior, again.rows_processed, again.rows_failed) == (29, 11, 0)
        assert len(server.received) == 40 + 11 and not server.paid_twice()
    assert len(list(read_output(tmp_path / "out"))) == 40


def test_a2_an_interrupt_is_a_normal_exit_and_the_next_run_loses_nothing(tmp_path, program):
    """Ctrl-C in the middle lands what was answered under its own id, and the same command finishes the rest."""
    out = tmp_path / "out"
    with Simulator(latency_s=0.02) as server:
        process = program(JOB, server.endpoint, out, 400)
        assert wait_until(lambda: len(server.served) >= 60, 30)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode != 0 and "KeyboardInterrupt" in said
        before = stored_ids(out)
        # Only what was on the wire at that moment may be missing.
        assert 60 - 8 <= len(server.served) - 8 <= len(before) < 400
        assert program(JOB, server.endpoint, out, 400).wait(60) == 0
        assert sum(server.paid_twice().values()) <= 2 * 8
    assert stored_ids(out) == dict.fromkeys((row["text"] for row in texts(400)), 1)
    assert all(record["answer"] == given(record["id"]) for record in records(out))


def test_a3_the_same_command_resumes_in_the_same_folder(tmp_path):
    """A second run with the same arguments is a resume: it finds its output, sends nothing, makes no other folder."""
    with Simulator(latency_s=0) as server:
        quick_pump(server, texts(20), tmp_path / "out")
        parts = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
        again = quick_pump(server, texts(20), tmp_path / "out")
        assert (again.rows_done_prior, again.rows_processed) == (20, 0)
        assert len(server.received) == 20
    assert os.listdir(tmp_path) == ["out"]
    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == parts


MEMORY = """
import resource, sys
from saturate import Fixed, pump
from tests.conftest import chat, texts

stats = pump(({"text": f"row {i}"} for i in range(int(sys.argv[3]))), chat, lambda response: {"blob": "x" * 80_000},
             sys.argv[1], sys.argv[2], window=Fixed(16), id_key="text", signal_source="none", flush_every=125)
assert stats.rows_processed == int(sys.argv[3])
print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


def test_a4_memory_is_flat_in_the_number_of_rows(tmp_path, program):
    """Results leave for the disk as they come: eight times the rows, 80 kB each, need no more memory."""
    with Simulator(latency_s=0) as server:
        peaks = []
        for rows in (250, 2_000):
            process = program(MEMORY, server.endpoint, tmp_path / str(rows), rows)
            out, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
            peaks.append(int(out) / 1024)
    # Held, they would be 140 MB more.
    assert peaks[1] - peaks[0] < 60, peaks


def test_a5_one_prompt_that_is_too_long_is_an_error_row_and_the_rest_goes_on(tmp_path):
    """A row that the server cannot take costs that row, and its record says why."""
    rows = [*texts(30), {"text": "very long " * 500}]
    with Simulator(latency_s=0, max_model_len=200) as server:
        stats = quick_pump(server, rows, tmp_path / "out")
    assert (stats.rows_processed, stats.rows_failed) == (30, 1)
    [failed] = [record for record in records(tmp_path / "out") if record["error"]]
    assert failed["id"].startswith("very long") and failed["error"].startswith("http 400: ")
    assert "200" in failed["error"]


def test_a6_every_answer_is_with_its_own_row_after_a_kill_and_a_resume_in_another_order(tmp_path, program):
    """The id travels with its request: no answer is ever attached by its position."""
    out = tmp_path / "out"
    with Simulator(step_s=0.002, tokens="uniform:1,20", max_num_seqs=16) as server:
        backwards = JOB.replace("texts(int(sys.argv[3]))", "reversed(texts(int(sys.argv[3])))")
        process = program(backwards, server.endpoint, out, 200)
        assert wait_until(lambda: len(server.served) >= 70, 30)
        process.kill()
        process.wait()
        assert program(JOB, server.endpoint, out, 200).wait(60) == 0
    found = records(out)
    assert sorted(record["id"] for record in found) == sorted(row["text"] for row in texts(200))
    # Answers have random lengths of up to four tokens, and begin with their prompt's digest.
    assert all(given(record["id"]).startswith(record["answer"]) for record in found)


def test_a7_a_row_that_is_never_answered_frees_its_slot_and_the_run_ends(tmp_path, short_backoff, quick_ticks):
    """One request that hangs, of 69 and with a window of one, costs its own time-outs and not the run."""
    with Simulator(latency_s=0, faults=Faults("hang:contains=row 41")) as server:
        stats = quick_pump(server, texts(69), tmp_path / "out", window=Fixed(1), read_timeout=0.1)
        assert len(server.served) == 68
    assert (stats.rows_processed, stats.rows_failed) == (68, 1)
    [failed] = [record for record in records(tmp_path / "out") if record["error"]]
    assert (failed["id"], failed["error"]) == ("row 41", "transport: ReadTimeout: no answer in 0.1 s")


def test_a8_a_stream_that_goes_silent_is_a_time_out_and_the_finished_rows_land_meanwhile(tmp_path, short_backoff):
    """Headers followed by nothing for hours hold back neither what is finished nor, for ever, the run."""
    faults = Faults("hang_after_headers:contains=row 7")
    out = tmp_path / "out"
    with Simulator(latency_s=0, faults=faults) as server, quick_client(server, read_timeout=300) as client:
        with ParquetSink(out, flush_seconds=0.1) as sink:
            results = through(client, stream(texts(10), id_key="text"), chat, text)
            lander = threading.Thread(target=drain, args=(results, sink), daemon=True)
            lander.start()
            assert wait_until(lambda: len(existing_ids(out)) == 9)
            assert "row 7" not in existing_ids(out) and lander.is_alive()
            results.close()
            lander.join(10)
            assert not lander.is_alive()
    with Simulator(latency_s=0, faults=faults) as server, quick_client(server, read_timeout=0.1) as client:
        _, error = client.post(chat({"text": "row 7"}))
        assert error == "transport: ReadTimeout: the body stopped arriving"


def test_a9_a_storm_of_429_is_said_aloud_keeps_what_is_finished_and_is_recovered_from(
    tmp_path, short_backoff, monkeypatch, caplog
):
    """While a server refuses everything, the log says so, finished rows are durable, and no row is given up."""
    monkeypatch.setattr(monitor, "STALL_S", 0.2)
    out = tmp_path / "out"
    with Simulator(latency_s=0.01) as server:
        with AdaptiveClient(server.endpoint, window=Auto(), signal_source="none", tick_s=0.05) as client:
            with ParquetSink(out, flush_seconds=0.05) as sink:
                results = through(client, stream(texts(600), id_key="text"), chat, text)
                counts: list[Any] = []
                lander = threading.Thread(target=lambda: counts.append(drain(results, sink)), daemon=True)
                with caplog.at_level(logging.WARNING, logger="saturate"):
                    lander.start()
                    assert wait_until(lambda: len(server.served) >= 50)
                    server.faults = Faults("error:status=429")
                    answered = len(server.served)
                    assert wait_until(lambda: "no answer for" in caplog.text)
                    assert wait_until(lambda: len(existing_ids(out)) >= answered)
                    lowest = client.limiter.window.limit
                    server.faults = Faults()
                    lander.join(60)
                assert "refused in this tick" in caplog.text
                assert (counts[0].rows_processed, counts[0].rows_failed) == (600, 0)
                assert client.breaker.opens == 0
                assert max(tick["limit"] for tick in client.limiter.ticks[-20:]) >= lowest


INTERRUPTED = """
import sys, time
from saturate import Fixed, pump
from tests.conftest import chat, text, texts

class Slow:
    def existing_ids(self, retry_errors=False): return set()
    def append(self, record): pass
    def flush(self):
        print("flushing", flush=True)
        time.sleep(600)

pump(texts(1000), chat, text, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else Slow(), window=Fixed(64),
     id_key="text", signal_source="none")
"""


def test_a10_the_first_ctrl_c_lands_what_is_finished_and_ends_though_requests_hang(tmp_path, program):
    """One press is enough, with every slot hanging on a server that never answers."""
    out = tmp_path / "out"
    with Simulator(latency_s=0, faults=Faults("hang:contains=row 1")) as server:
        process = program(INTERRUPTED, server.endpoint, out)
        assert wait_until(lambda: server.stats()["connections"] and len(server.received) - len(server.served) >= 64, 30)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert "KeyboardInterrupt" in said
        assert set(stored_ids(out)) and len(stored_ids(out)) == len(server.served)


def test_a10_the_second_ctrl_c_does_not_even_wait_for_the_landing(program):
    """A user who presses twice wants out, whatever the sink is doing."""
    with Simulator(latency_s=0, faults=Faults("hang:contains=row 1")) as server:
        process = program(INTERRUPTED, server.endpoint)
        assert wait_until(lambda: len(server.received) - len(server.served) >= 64, 30)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "flushing\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode != 0


def test_a11_every_answers_own_retry_after_is_a_floor_under_the_next_wait(short_backoff):
    """Each refusal says how long to wait, and each is waited out, jitter or not."""
    faults = Faults("error:status=429,retry_after=0.2,attempts=1", "error:status=503,retry_after=0.3,attempts=2")
    with Simulator(latency_s=0, faults=faults) as server, quick_client(server) as client:
        started = time.monotonic()
        _, error = client.post(chat({"text": "a"}))
        assert error is None and len(server.received) == 3
        assert time.monotonic() - started >= 0.2 + 0.3


def test_a12_a_long_retry_after_is_honoured_without_a_slot_up_to_the_users_cap(short_backoff):
    """Above a minute is still a wait, not a mistake; others use the slot meanwhile; the user bounds it."""
    faults = Faults("error:status=429,retry_after=90,contains=row 0")
    rows = stream(texts(20), id_key="text")
    with Simulator(latency_s=0, faults=faults) as server:
        with quick_client(server, window=1) as client:
            results = through(client, rows, chat, text)
            assert sorted(next(results).id for _ in range(19)) == sorted(f"row {i}" for i in range(1, 20))
            assert client.limiter.parked_threads == 1 and client.limiter.window.inflight == 0
            assert len(server.received) == 20, "the refused row has not been tried again"
            results.close()
        with quick_client(server, window=1, max_retry_after=60) as client:
            _, error = client.post(chat({"text": "row 0"}))
            assert error.startswith("http 429") and "the server asks to wait 90 s" in error
            assert len(server.received) == 21


def test_a13_a_quota_an_overload_and_a_refusal_are_told_apart_and_shown(short_backoff):
    """A 5xx is no rate limit and a 400 is neither; ticks count each class, and an error row names its status."""
    faults = Faults(
        "error:status=429,retry_after=0,attempts=1,contains=row 0",
        "error:status=503,attempts=1,contains=row 1",
        "error:status=400,contains=row 2",
        "error:status=503,contains=row 3",
    )
    with Simulator(latency_s=0, faults=faults) as server, quick_client(server) as client:
        done = {d.id: d.error for d in through(client, stream(texts(4), id_key="text"), chat, text)}
    shown = {key: sum(tick[key] for tick in client.limiter.ticks) for key in ("ok", "rate_limited", "bp")}
    assert (shown["ok"], shown["rate_limited"]) == (2, 1)
    # Five attempts of the row that always fails, or as many as it takes to see that the server works for others.
    assert 1 + 5 <= shown["bp"] <= 1 + 9
    assert done["row 0"] is None and done["row 1"] is None
    assert done["row 2"].startswith("http 400: ") and done["row 3"].startswith("http 503 after retries: ")


def test_a14_an_answer_that_keeps_arriving_is_not_cut_for_being_long():
    """Silence is what is limited, not the length of a generation; nor is any default under half an hour."""
    # Some 330 bytes at 800 a second: longer than the time-out, with never so much silence.
    with Simulator(latency_s=0, faults=Faults("drip:bytes_per_s=800")) as server:
        with quick_client(server, read_timeout=0.3) as client:
            _, error = client.post(chat({"text": "long"}))
            assert error is None and len(server.received) == 1
            assert client.limiter.latency_s > 0.3
    for function in (pump, AdaptiveClient):
        assert inspect.signature(function).parameters["read_timeout"].default >= 1800


def test_a17_many_threads_on_a_small_window_wait_without_a_pool_time_out_on_kept_connections():
    """There is no pool to time out on: a thread waits for its slot as long as it takes, and keeps one connection."""
    with Simulator(latency_s=0.005, faults=Faults("keep_alive:seconds=0.05")) as server:
        with quick_client(server, window=2) as client:
            errors: list[Any] = []

            def several(thread: int) -> None:
                for i in range(10):
                    errors.append(client.post(chat({"text": f"{thread} {i}"}))[1])

            threads = [threading.Thread(target=several, args=(i,)) for i in range(32)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert errors == [None] * 320
            # A day later: the server has long closed what was kept.
            assert wait_until(lambda: server.stats()["connections"] == 0)
            assert client.post(chat({"text": "again"}))[1] is None
            assert client.limiter.take_tick().bp == 0


@pytest.mark.parametrize("window", [1, 100, 101, 1024])
def test_a18_the_window_shown_is_the_window_on_the_wire(window):
    """No library underneath has a smaller limit of its own."""
    with Simulator(latency_s=0, faults=Faults("hang")) as server:
        with quick_client(server, window=window, tick_s=0.05) as client:
            results = through(client, ((str(i), {"text": str(i)}) for i in range(2 * window)), chat, text)
            taker = threading.Thread(target=lambda: next(results, None), daemon=True)
            taker.start()
            assert wait_until(lambda: len(server.received) >= window, 60)
            assert wait_until(lambda: client.limiter.ticks and client.limiter.ticks[-1]["inflight"] == window)
            assert client.limiter.ticks[-1]["limit"] == window == len(server.received)
            results.close()
            taker.join()


def test_a19_of_a_million_rows_only_a_windowful_is_pulled():
    """Tasks are made as slots come free, not all at once."""
    pulled = 0

    def rows() -> Any:
        nonlocal pulled
        for i in range(1_000_000):
            pulled += 1
            yield str(i), {"text": str(i)}

    with Simulator(latency_s=0, faults=Faults("hang")) as server, quick_client(server, window=32) as client:
        results = through(client, rows(), chat, text)
        taker = threading.Thread(target=lambda: next(results, None), daemon=True)
        taker.start()
        assert wait_until(lambda: len(server.received) == 32)
        time.sleep(0.2)
        assert pulled <= 2 * 32 + 9
        assert len([t for t in threading.enumerate() if t.name.startswith("saturate-request")]) <= 32 + 4
        results.close()
        taker.join()


IMPORTED = """
import os, sys, threading
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "os.fork") else None)
import saturate
from saturate import *
assert threading.active_count() == 1, threading.enumerate()
assert not started, started
links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
assert not [link for link in links if link.startswith("socket:")], links
print(sorted({"asyncio", "anyio", "trio", "gevent"} & set(sys.modules)))
"""


def test_a20_importing_starts_no_thread_opens_no_socket_and_loads_no_event_loop(program):
    """What is made at import is inherited by every fork; so nothing is."""
    out, said = program(IMPORTED).communicate(timeout=60)
    assert out == "[]\n", said


FORKED = """
import os, sys
from saturate import AdaptiveClient, AdaptiveLimiter, Fixed, ParquetSink, drain, stream, through
from tests.conftest import chat, text, texts

client = AdaptiveClient(sys.argv[1], window=Fixed(4), signal_source="none")
sink = ParquetSink(sys.argv[2])
used = ParquetSink(sys.argv[3])
used.append({"id": "parent", "error": None})
for child in range(2):
    if os.fork() == 0:
        with client, sink, used:
            stats = drain(through(client, stream(texts(20 * child + 20), id_key="text"), chat, text), sink)
            used.append({"id": f"child {child}", "error": None})
        os._exit(0 if stats.rows_processed == 20 * child + 20 else 1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
used.close()
"""


def test_a20_what_was_made_before_a_fork_works_in_the_child(tmp_path, program):
    """A client and a sink are plain configuration until they are used, and then belong to the process that does."""
    with Simulator(latency_s=0) as server:
        process = program(FORKED, server.endpoint, tmp_path / "out", tmp_path / "used")
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert stored_ids(tmp_path / "out") == {f"row {i}": 2 if i < 20 else 1 for i in range(40)}
    assert stored_ids(tmp_path / "used") == {"parent": 1, "child 0": 1, "child 1": 1}


def test_a20_a_sink_can_be_pickled_for_a_worker(tmp_path):
    """Spawned workers get their objects by pickle."""
    with ParquetSink(tmp_path / "out") as sink:
        sink.append({"id": "a", "error": None})
        with pickle.loads(pickle.dumps(sink)) as other:
            other.append({"id": "b", "error": None})
    assert stored_ids(tmp_path / "out") == {"a": 1, "b": 1}


IN_A_LOOP = """
import asyncio, sys
from saturate import AdaptiveClient, Fixed, pump, stream, through
from tests.conftest import chat, text, texts

async def cell():
    stats = pump(texts(20), chat, text, sys.argv[1], sys.argv[2], window=Fixed(4), id_key="text")
    with AdaptiveClient(sys.argv[1], window=Fixed(4)) as client:
        return stats.rows_processed, len(list(through(client, stream(texts(9)), chat, text)))

async def notebook():
    print(await cell(), flush=True)

asyncio.run(notebook())
"""


def test_a21_it_works_where_an_event_loop_is_already_running(tmp_path, program):
    """A notebook's cell runs inside a loop; a blocking call does not mind."""
    with Simulator(latency_s=0) as server:
        process = program(IN_A_LOOP, server.endpoint, tmp_path / "out")
        out, said = process.communicate(timeout=60)
    assert out == "(20, 9)\n", said


def test_a22_a_first_part_of_nulls_and_late_columns_widen_and_a_conflict_says_why(tmp_path):
    """No column is dropped, no later part crashes, and what cannot be stored is an error row with the reason."""
    columns = [
        {"score": None},
        {"score": None},
        {"score": 1},
        {"score": 2.5, "late": "x"},
        {"score": "seven"},
        {"late": "y", "deep": {"a": []}},
    ]

    def parse(row: dict[str, Any], response: Any) -> dict[str, Any]:
        return columns[int(row["text"][4:])]

    out = tmp_path / "out"
    with Simulator(latency_s=0) as server:
        for count in (2, 4, 6):
            quick_pump(server, texts(count), out, parse=parse, window=Fixed(1), flush_every=2)
        assert len(server.received) == 6
    stored = {record["id"]: record for record in records(out)}
    assert len(stored) == 6 == sum(stored_ids(out).values())
    assert stored["row 2"]["score"] == 1
    assert "score" in stored["row 4"]["error"]
    assert [stored[f"row {i}"]["error"] for i in (0, 1, 2, 3, 5)] == [None] * 5
    assert (stored["row 3"]["score"], stored["row 3"]["late"], stored["row 5"]["late"]) == (2.5, "x", "y")


@pytest.fixture
def said_every_tick(monkeypatch: pytest.MonkeyPatch, quick_ticks: None) -> None:
    """A line of progress for each tick."""
    monkeypatch.setattr(pump_module, "Progress", functools.partial(Progress, every_s=0.0))


def progress_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "done now" in record.getMessage()]


def test_a25_progress_after_a_resume_counts_what_was_done_before_apart(tmp_path, said_every_tick, caplog):
    """Done before and done now are two numbers, and two runs at once print plain lines."""
    with Simulator(latency_s=0.05) as server:
        quick_pump(server, texts(8), tmp_path / "out")
        quick_pump(server, texts(8), tmp_path / "other")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="saturate"):
            other = threading.Thread(target=quick_pump, args=(server, texts(24), tmp_path / "other"))
            other.start()
            quick_pump(server, texts(24), tmp_path / "out")
            other.join()
    lines = progress_lines(caplog)
    assert len(lines) >= 4
    for line in lines:
        now, before = int(line.split(" done now")[0]), int(line.split("), ")[1].split(" before")[0])
        assert now <= 16 and before <= 8, line
        assert "\r" not in line and "\x1b" not in line
    assert max(int(line.split()[0]) for line in lines) > 0


def test_a26_a_dead_run_shows_no_progress_and_says_that_it_is_stalled(monkeypatch, caplog):
    """Progress is rows, not the turning of a wheel; silence has a line of its own."""
    monkeypatch.setattr(monitor, "STALL_S", 0.2)
    with Simulator(latency_s=0, faults=Faults("hang:contains=row 1")) as server:
        with quick_client(server, on_tick=Progress(Counts(), every_s=0.0)) as client:
            with caplog.at_level(logging.INFO, logger="saturate"):
                results = through(client, [("1", {"text": "row 1"})], chat, text)
                taker = threading.Thread(target=lambda: next(results, None), daemon=True)
                taker.start()
                assert wait_until(lambda: "no answer for" in caplog.text)
            results.close()
            taker.join()
    assert "1 requests in flight, the oldest for" in caplog.text
    assert all(line.startswith("0 done now (0 failed), 3 before; 0.0 rows/s") for line in progress_lines(caplog))


class Counts:
    rows_processed = rows_failed = 0
    rows_done_prior = 3


def test_a27_an_engine_that_says_429_when_it_is_full_is_no_failure(tmp_path, short_backoff):
    """Overload is answered by a smaller window, not by error rows and not by an open circuit."""
    with Simulator(latency_s=0.01, faults=Faults("cap:requests=4")) as server:
        with AdaptiveClient(server.endpoint, window=Auto(initial=32), signal_source="none", tick_s=0.05) as client:
            with ParquetSink(tmp_path / "out") as sink:
                stats = drain(through(client, stream(texts(400), id_key="text"), chat, text), sink)
            assert (stats.rows_processed, stats.rows_failed) == (400, 0)
            assert client.breaker.opens == 0
            assert server.stats()["statuses"].get("429", 0) > 0 and not server.paid_twice()
            assert min(tick["limit"] for tick in client.limiter.ticks) < 32


def test_a28_a_dead_endpoint_pauses_the_run_and_no_row_is_lost(tmp_path, short_backoff):
    """The run waits for the server with probes, then goes on where it was; an outage is no row's fault."""
    with Simulator(latency_s=0.01) as server:
        rows = texts(600)

        def parse(row: dict[str, Any], response: Any) -> dict[str, Any]:
            if row["text"] == "row 100":
                server.faults = Faults("outage:start=0,end=0.8,how=refuse")
            return text(row, response)

        stats = quick_pump(server, rows, tmp_path / "out", parse=parse, window=Fixed(8))
        assert stats.breaker_opens >= 1
    assert (stats.rows_processed, stats.rows_failed) == (600, 0)
    assert stored_ids(tmp_path / "out") == dict.fromkeys((row["text"] for row in rows), 1)
    assert json.loads((tmp_path / "out" / "completions" / "stats-0.json").read_text())["breaker_opens"] >= 1
