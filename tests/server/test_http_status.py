"""What a server tells of itself: metrics for Prometheus, and a page for people, looked at in a browser."""

import shutil
import socket
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shuflr.server.page import Offer, bare_host, size, status_page
from tests.conftest import wait_until
from tests.server.conftest import lines, write_corpus
from tests.server.test_http_edge import Serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def metrics_of(serving):
    """Every sample by name and labels."""
    status, headers, body = serving.get("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    named = ("dataset", "transport")
    return {(each.name, *(each.labels[name] for name in named if name in each.labels)): each.value for each in samples}


@pytest.fixture
def large(tmp_path):
    return write_corpus(tmp_path / "large.zst", [b"%d %s\n" % (i, b"y" * 1000) for i in range(16_000)], 1 << 19)


def test_metrics_count_what_was_sent(corpus):
    with Serving(corpus[0]) as serving:
        bodies = [serving.get(f"/v1/streams/corpus?seed={seed}")[2] for seed in range(3)]
        assert wait_until(lambda: not serving.edge.live.streams())  # the last byte is out before it is counted
        found = metrics_of(serving)
        of_http = {name: found[name, "corpus", "http"] for name in (
            "shuflr_streams_total", "shuflr_records_total", "shuflr_bytes_total", "shuflr_errors_total",
            "shuflr_active_streams", "shuflr_blocked_on_client_seconds_total",
        )}  # fmt: skip
        assert of_http.pop("shuflr_blocked_on_client_seconds_total") >= 0
        assert of_http == {
            "shuflr_streams_total": 3, "shuflr_records_total": 3 * len(corpus[1]),
            "shuflr_bytes_total": sum(map(len, bodies)), "shuflr_errors_total": 0, "shuflr_active_streams": 0,
        }  # fmt: skip
        assert found["shuflr_blocked_on_disk_seconds_total", "corpus"] > 0
        assert found["shuflr_processes",] == 1


def test_metrics_show_running_streams(large):
    with Serving(large) as serving:
        sock = serving.say(b"GET /v1/streams/corpus?epochs=0&seed=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
        assert wait_until(lambda: metrics_of(serving)["shuflr_stream_bytes", "corpus", "http"] > 0)
        found = metrics_of(serving)
        assert found["shuflr_active_streams", "corpus", "http"] == 1
        assert ("shuflr_stream_epoch", "corpus", "http") in found
        sock.close()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_in_a_browser(large, tmp_path):
    offers = (Offer("shuflr", "9001"), Offer("shuflr+unix", "/run/a b"))
    with Serving(large, offers=offers) as serving:
        serving.catalog["corpus"].counts.complete()
        sock = serving.say(b"GET /v1/streams/corpus?epochs=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
        picture = tmp_path / "page.png"
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
                   f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,700"]  # fmt: skip
        url = f"http://127.0.0.1:{serving.address[1]}/"
        page = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=120).stdout
        subprocess.run([*command, f"--screenshot={picture}", url], capture_output=True, timeout=120, check=True)
        sock.close()
    assert "Dataset('shuflr://127.0.0.1:9001/corpus')" in page
    assert "Dataset('shuflr+unix:///run/a%20b/corpus')" in page
    assert "16,000" in page and "seekable zstd" in page and "chunk-shuffled" in page
    assert page.count("<tr>") == 4 and "1 dataset, 1 stream, 1 process." in page
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_that_a_client_says_becomes_markup(corpus):
    with Serving(corpus[0], offers=(Offer("http", "80"),)) as serving:
        evil = "<script>alert(1)</script>"
        page = serving.get("/", Host=evil)[2].decode()
        assert "<script" not in page and "&lt;script" in page
        stream = {"dataset": evil, "transport": evil, "peer": evil, "shuffle": evil, "epoch": 0, "records": 1,
                  "bytes": 1, "seconds": 1.0, "blocked_on_client": 0.0, "total_records": None}  # fmt: skip
        page = status_page(serving.catalog, [{"streams": [stream]}], (), evil)
        assert "<script" not in page and page.count("&lt;script") == 4


@pytest.mark.parametrize("host, bare", [
    ("a:80", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("", "localhost"),
])  # fmt: skip
def test_the_host_that_a_client_reaches(host, bare):
    assert bare_host(host) == bare


def test_sizes_for_people():
    assert [size(count) for count in (None, 0, 1023, 1024, 5 << 30, 1 << 60)] == [
        "", "0 B", "1023 B", "1.0 KiB", "5.0 GiB", "1048576.0 TiB",
    ]  # fmt: skip


def test_the_page_needs_a_token_like_everything_else(tmp_path):
    path = write_corpus(tmp_path / "c.zst", lines(10))
    with Serving(path, authenticate=lambda header: None if header == b"yes" else "no") as serving:
        for target in ("/", "/metrics", "/v1/datasets", "/v1/streams/corpus", "/nothing"):
            assert serving.get(target)[0] == 401
        assert serving.get("/", Authorization="yes")[0] == serving.get("/v1/health")[0] == 200


def test_ipv6_is_served_too(corpus):
    with Serving(corpus[0]) as serving:
        try:
            listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("no IPv6 here")
        serving.edge.serve(listener)
        serving.address = listener.getsockname()[:2]
        assert serving.get("/v1/health")[0] == 200
