"""A run that hangs at 99 % is the fault that users report most: each way to get there, and the way out of it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Callable

import pytest

from saturate import Fixed, existing_ids, pump
from saturate.flow import overdue
from saturate.simulate import Faults, Simulator
from tests.conftest import chat, text, texts, wait_until
from tests.field.conftest import records, stored_ids

pump_module = importlib.import_module("saturate.pump")  # the name in the package is the function

pytestmark = pytest.mark.usefixtures("nothing_left", "short_backoff")

BODY = b'{"choices": [{"message": {"content": "an answer"}}]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
LAST = "row 99"


@pytest.fixture(autouse=True)
def quick_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks of 50 ms, and a forecast that is believed after half a second instead of a minute."""
    monkeypatch.setattr(pump_module, "AdaptiveClient", functools.partial(pump_module.AdaptiveClient, tick_s=0.05))
    monkeypatch.setattr(overdue, "FORECAST_AT_LEAST_S", 0.5)


@contextlib.contextmanager
def serving(last: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers; the first request for the last row it leaves to `last`, and then never reads again.

    Gives its endpoint and the bodies of all requests for the last row.
    """
    asked: list[bytes] = []
    open_sockets: list[socket.socket] = []

    def serve(conn: socket.socket) -> None:
        stream = conn.makefile("rb")
        with contextlib.suppress(OSError):
            while stream.readline():
                length = 0
                while (line := stream.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                body = stream.read(length)
                if LAST.encode() in body:
                    asked.append(body)
                    if len(asked) == 1:
                        last(conn)
                        return
                conn.sendall(HEAD + BODY)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                open_sockets.append(conn)
                threading.Thread(target=serve, args=(conn,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for conn in open_sockets:
                with contextlib.suppress(OSError):
                    conn.shutdown(socket.SHUT_RDWR)
                conn.close()


def half_close(conn: socket.socket) -> None:
    conn.shutdown(socket.SHUT_WR)


def half_close_after_half_the_body(conn: socket.socket) -> None:
    conn.sendall(HEAD + BODY[:20])
    conn.shutdown(socket.SHUT_WR)


def stop_reading_and_say_nothing(conn: socket.socket) -> None:
    conn.shutdown(socket.SHUT_RD)


def say_headers_and_nothing_more(conn: socket.socket) -> None:
    conn.sendall(HEAD)


def say_half_a_status_line(conn: socket.socket) -> None:
    conn.sendall(b"HTTP/1.1 2")


def forget(conn: socket.socket) -> None:
    pass


@pytest.mark.parametrize(
    "last",
    [
        half_close,
        half_close_after_half_the_body,
        stop_reading_and_say_nothing,
        say_headers_and_nothing_more,
        say_half_a_status_line,
        forget,
    ],
)
def test_the_last_row_that_is_not_answered_is_sent_again_on_another_connection(last, tmp_path):
    """The connection stays open at the server's end in each case, and every time-out is at its default of half an hour.

    100 rows, so that the other 99 say how long an answer takes.
    """
    with serving(last) as (endpoint, asked):
        rows = texts(100)
        stats = pump(rows, chat, text, endpoint, tmp_path / "out", window=Fixed(4), id_key="text", signal_source="none")
    assert (stats.rows_processed, stats.rows_failed) == (100, 0)
    assert len(asked) == 2
    assert sorted(stored_ids(tmp_path / "out")) == sorted(row["text"] for row in rows)


def test_a_row_that_is_forgotten_each_time_is_an_error_row_and_the_run_ends(tmp_path):
    with Simulator(latency_s=0, faults=Faults(f"hang:contains={LAST}")) as server:
        stats = pump(
            texts(100), chat, text, server.endpoint, tmp_path / "out", window=Fixed(4), id_key="text", read_timeout=0.2
        )
    assert (stats.rows_processed, stats.rows_failed) == (99, 1)
    [failed] = [record for record in records(tmp_path / "out") if record["error"]]
    assert failed["id"] == LAST and "ReadTimeout" in failed["error"]


def test_a_server_that_runs_nothing_while_we_wait_has_forgotten_the_row(tmp_path, monkeypatch):
    """Its gauges say so, long before any time-out or forecast: the answers are few and take a while."""
    monkeypatch.setattr(overdue, "FORECAST_AT_LEAST_S", 3600.0)
    with Simulator(tokens=20, step_s=0.02, faults=Faults("hang:contains=row 9,attempts=1")) as server:
        slow = lambda row: {**chat(row), "max_tokens": 40}  # noqa: E731
        stats = pump(texts(10), slow, text, server.endpoint, tmp_path / "out", window=Fixed(4), id_key="text")
        assert len(server.received) == 11
    assert (stats.rows_processed, stats.rows_failed) == (10, 0)


BLOCKING = """
import sys, threading
from saturate import Fixed, ParquetSink, pump

def rows():
    for n in range(50):
        yield {"text": f"row {n}"}
    print("blocked", flush=True)
    threading.Event().wait()

def chat(row): return {"model": "m", "messages": [{"role": "user", "content": row["text"]}], "max_tokens": 2}

pump(rows(), chat, lambda response: {}, sys.argv[1], ParquetSink(sys.argv[2], flush_seconds=0.2), window=Fixed(8),
     id_key="text", signal_source="none")
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_source_that_never_gives_its_last_row_holds_back_neither_the_others_nor_ctrl_c(
    number, status, tmp_path, program
):
    out = tmp_path / "out"
    with Simulator(latency_s=0) as server:
        process = program(BLOCKING, server.endpoint, out)
        assert process.stdout.readline() == "blocked\n"
        # By time alone: nothing more comes in, and nobody flushes.
        assert wait_until(lambda: len(existing_ids(out)) == 50, 30)
        assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == status
    assert len(stored_ids(out)) == 50
    assert not (out / "_journal").exists()
