"""The metrics page: never raises, goes blind after five misses, and tries again now and then."""

from __future__ import annotations

import gzip
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from saturate.flow import scrape
from saturate.flow.scrape import BLIND_READS_PER_TRY, MISSES_UNTIL_BLIND, MetricsPage

GOOD = b"vllm:num_requests_waiting 2\nvllm:num_requests_running 5\n"


class Page(ThreadingHTTPServer):
    """Serves /metrics as told, and counts who asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.body, self.status, self.coding = GOOD, 200, ""
        self.asked: list[dict[str, str]] = []
        self.hold: threading.Event | None = None
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Page

    def do_GET(self) -> None:
        self.server.asked.append({"path": self.path, **self.headers})
        if self.server.hold is not None:
            self.server.hold.wait(10)
        body = self.server.body  # once: a test may set the next while this one is on its way
        self.send_response(self.server.status)
        if self.server.coding:
            self.send_header("Content-Encoding", self.server.coding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    made = Page()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def page(server):
    made = MetricsPage(server.root, {"Authorization": "Bearer k"})
    yield made
    made.close()


def test_a_reading_is_the_gauges_and_names_the_engine(server, page):
    assert page.dialect is None
    assert page.read() == {
        "waiting": 2.0, "running": 5.0, "kv": None, "hits": None, "preempts": None, "engine_tokens": None,
    }  # fmt: skip
    assert page.dialect == "vllm"
    assert (server.asked[0]["path"], server.asked[0]["Authorization"]) == ("/metrics", "Bearer k")


def test_the_text_counts_and_not_the_status(server, page):
    server.status = 503
    assert page.read()["waiting"] == 2


def test_a_compressed_page_is_read(server, page):
    server.body, server.coding = gzip.compress(GOOD), "gzip"
    assert page.read()["waiting"] == 2


@pytest.mark.parametrize("body", [b"", b"<html>not found</html>", b"\xff\xfe\x00", b"other_metric 3\n"])
def test_a_page_without_gauges_is_no_reading(server, page, body):
    server.body = body
    assert page.read() is None and page.dialect is None


def test_a_page_that_is_not_what_it_says_is_no_reading(server, page):
    server.coding = "gzip"
    assert page.read() is None


def test_a_server_that_is_not_there_is_no_reading():
    page = MetricsPage("http://127.0.0.1:9", {})
    assert [page.read() for _ in range(3)] == [None] * 3
    page.close()


def test_a_page_that_does_not_come_is_given_up(server, page, monkeypatch):
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.05)
    server.hold = threading.Event()
    assert page.read() is None
    server.hold.set()
    server.hold = None
    assert page.read()["waiting"] == 2


def test_after_five_misses_it_is_blind_and_says_so_once(server, page, caplog):
    server.body = b""
    with caplog.at_level(logging.INFO, logger="saturate"):
        for _ in range(MISSES_UNTIL_BLIND):
            assert page.read() is None
        assert len(server.asked) == MISSES_UNTIL_BLIND == 5
        server.body = GOOD
        for _ in range(BLIND_READS_PER_TRY - 1):
            assert page.read() is None
        assert len(server.asked) == 5, "blind: nobody asks"
        server.body = b""
        assert page.read() is None
        assert len(server.asked) == 6, "one real try in thirty reads"
        for _ in range(2 * BLIND_READS_PER_TRY):
            page.read()
        assert len(server.asked) == 8
    assert [r.getMessage() for r in caplog.records] == [
        f"no engine gauges at {server.root}/metrics: the window is found from throughput alone"
    ]


def test_a_page_that_comes_back_is_said_and_read_at_every_tick_again(server, page, caplog):
    server.body = b""
    for _ in range(MISSES_UNTIL_BLIND):
        page.read()
    server.body = GOOD
    with caplog.at_level(logging.INFO, logger="saturate"):
        readings = [page.read() for _ in range(BLIND_READS_PER_TRY)]
    assert readings[:-1] == [None] * (BLIND_READS_PER_TRY - 1) and readings[-1]["waiting"] == 2
    assert [r.getMessage() for r in caplog.records] == [f"engine gauges at {server.root}/metrics are back (vllm)"]
    asked = len(server.asked)
    assert all(page.read() for _ in range(3))
    assert len(server.asked) == asked + 3
    server.body = b""
    assert [page.read() for _ in range(4)] == [None] * 4 and len(server.asked) == asked + 7, "the count began anew"


def test_four_misses_and_a_reading_are_no_blindness(server, page, caplog):
    with caplog.at_level(logging.INFO, logger="saturate"):
        for _ in range(4):
            server.body = b""
            assert [page.read() for _ in range(4)] == [None] * 4
            server.body = GOOD
            assert page.read() is not None
    assert not caplog.records and len(server.asked) == 20
    assert page.dialect == "vllm"
