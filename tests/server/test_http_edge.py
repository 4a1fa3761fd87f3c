"""The HTTP edge: resuming, trailers, time-outs, caps, broken sources, and who shares its socket."""

import http.client
import json
import logging
import os
import random
import socket
import threading

import pytest

from shuflr import core
from shuflr.server.catalog import Catalog
from shuflr.server.edge import Limits
from shuflr.server.either import EitherEdge
from shuflr.server.http_edge import HttpEdge
from shuflr.server.memory import Memory
from shuflr.server.wire_edge import WireEdge
from shuflr.wire import ClientHello, Decoder, OpenStream, ServerHello, encode
from tests.conftest import wait_until
from tests.server.conftest import write_corpus


class Serving:
    """An edge over one corpus; everything it started is gone when the test ends."""

    def __init__(self, path, memory=None, **options):
        self.catalog = Catalog([("corpus", path)], count=False)
        self.edge = HttpEdge(self.catalog, memory or Memory(), **options)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.edge.serve(listener)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.edge.drain(10.0)
        assert wait_until(lambda: not any(t.name.startswith("shuflr-http") for t in threading.enumerate()))

    def get(self, target, **headers):
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def say(self, request):
        sock = socket.create_connection(self.address, timeout=60)
        sock.sendall(request)
        return sock


@pytest.fixture
def serving(corpus):
    with Serving(corpus[0]) as started:
        yield started


@pytest.fixture
def large(tmp_path):
    """A corpus whose epoch does not fit in socket buffers: (path, records)."""
    records = [b"%d %s\n" % (i, os.urandom(500).hex().encode()) for i in range(16_000)]
    return write_corpus(tmp_path / "large.zst", records, frame_size=1 << 19), records


@pytest.fixture
def said(caplog, monkeypatch):
    """What the server logs, whatever a command that ran in this process has set."""
    monkeypatch.setattr(logging.getLogger("shuflr"), "propagate", True)
    return caplog


def everything(sock):
    """All that comes until the server closes."""
    found = bytearray()
    with sock:
        while piece := sock.recv(1 << 20):
            found += piece
    return bytes(found)


def body_of(answer):
    """The body of a chunked answer, and what follows it; fails where a chunk is missing."""
    rest, body = answer.partition(b"\r\n\r\n")[2], b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return body, rest
        assert rest[int(size, 16) :][:2] == b"\r\n"
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


@pytest.mark.parametrize("shuffle", ["chunk-shuffled", "none", "buffer", "index-perm", "frame-pool:3"])
def test_a_stream_goes_on_at_any_record(serving, corpus, shuffle):
    target = f"/v1/streams/corpus?seed=3&epochs=2&shuffle={shuffle}"
    whole = serving.get(target)[2].splitlines(True)
    assert len(whole) == 2 * len(corpus[1])
    for skip in (0, 1, 123, len(corpus[1]), len(corpus[1]) + 77, len(whole), len(whole) + 5):
        status, headers, body = serving.get(f"{target}&skip={skip}")
        assert status == 200 and headers["shuflr-resumed-at"] == str(skip)
        assert body.splitlines(True) == whole[skip:]


def test_what_is_not_asked_for_is_not_said(serving):
    assert "shuflr-resumed-at" not in serving.get("/v1/streams/corpus")[1]


def test_another_state_of_the_dataset_is_a_conflict(serving):
    label = serving.catalog["corpus"].label
    assert serving.get(f"/v1/streams/corpus?fingerprint={label}")[0] == 200
    status, _, body = serving.get("/v1/streams/corpus?fingerprint=blake3:" + "0" * 64)
    assert status == 409 and json.loads(body)["error"] == "input_changed"


def test_the_length_is_told_once_it_is_known(serving, corpus):
    serving.catalog["corpus"].counts.complete()
    assert serving.get("/v1/streams/corpus?epochs=3")[1]["shuflr-total-records"] == str(3 * len(corpus[1]))
    assert "shuflr-total-records" not in serving.get("/v1/streams/corpus?epochs=0&sample=1&skip=1" + "0" * 30)[1]


@pytest.mark.parametrize("asked", ["trailers", "gzip;q=0.5, trailers"])
def test_who_takes_trailers_gets_the_checksum_of_the_body(serving, corpus, asked):
    request = f"GET /v1/streams/corpus?epochs=2 HTTP/1.1\r\nHost: x\r\nTE: {asked}\r\nConnection: close\r\n\r\n"
    answer = everything(serving.say(request.encode()))
    body, trailers = body_of(answer)
    assert b"\r\ntrailer: shuflr-records, shuflr-xxh3\r\n" in answer
    assert trailers == b"shuflr-records: %d\r\nshuflr-xxh3: %016x\r\n\r\n" % (2 * len(corpus[1]), core.xxh3(body))


def test_one_connection_serves_one_request_after_the_other(serving, corpus):
    connection = http.client.HTTPConnection(*serving.address, timeout=60)
    for target, size in (("/v1/streams/corpus", None), ("/v1/health", 21), ("/v1/streams/corpus?seed=1", None)):
        connection.request("GET", target)
        body = connection.getresponse().read()
        assert len(body) == size or len(body.splitlines()) == len(corpus[1])
    assert len(serving.edge._connections) == 1
    connection.close()


def test_a_request_with_a_body_is_answered_and_its_connection_closed(serving):
    answer = everything(serving.say(b"POST /v1/health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"))
    assert answer.startswith(b"HTTP/1.1 404") and b"connection: close" in answer


def test_an_old_client_gets_the_bare_records(serving, corpus):
    answer = everything(serving.say(b"GET /v1/streams/corpus HTTP/1.0\r\n\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200") and b"chunked" not in head
    assert sorted(body.splitlines(True)) == sorted(corpus[1])


@pytest.mark.parametrize("request_", [b"", b"GET /v1/hea", b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_come_is_given_up(corpus, request_):
    with Serving(corpus[0], limits=Limits(handshake=0.2)) as serving:
        assert everything(serving.say(request_)) == b""


def test_a_request_that_comes_in_drops_is_given_up_too(corpus):
    """Each byte comes in time, the whole does not."""
    with Serving(corpus[0], limits=Limits(handshake=0.3)) as serving, serving.say(b"GET /") as sock:
        with pytest.raises(OSError):
            for _ in range(500):
                sock.sendall(b"a")
                threading.Event().wait(0.02)


@pytest.mark.parametrize("request_, status", [
    (b"GET /" + b"a" * 40_000, b"414"),
    (b"GET / HTTP/1.1\r\nA: " + b"a" * 40_000, b"413"),
    (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 9000, b"413"),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
    (b"GET / HTTP/2.0\r\n\r\n", b"505"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    (b"GET /v1/streams/../../etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", b"404"),
    (b"GET /v1/streams/%2e%2e%2fpasswd HTTP/1.1\r\nConnection: close\r\n\r\n", b"404"),
], ids=range(8))  # fmt: skip
def test_hostile_requests_are_refused(serving, request_, status):
    try:
        answer = everything(serving.say(request_))
    except ConnectionResetError:  # the answer is lost when it is still sending
        answer = b"HTTP/1.1 " + status
    assert answer.split(b" ")[1] == status
    assert serving.get("/v1/health")[0] == 200


@pytest.mark.parametrize("request_", [
    b"GET http://::1]:80/v1/health HTTP/1.1\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\n continued: from nothing\r\n\r\n",
], ids=range(2))  # fmt: skip
def test_bytes_that_the_parser_trips_over_are_a_bad_request(serving, request_, said):
    assert everything(serving.say(request_)).startswith(b"HTTP/1.1 400")
    assert not [record for record in said.records if record.levelname == "ERROR"]


def test_mutated_requests_never_disturb_the_server(serving, said):
    draw = random.Random(7)
    whole = (b"GET /v1/streams/corpus?seed=1&epochs=1&rank=0&world_size=2 HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n"
             b"Authorization: Bearer a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")  # fmt: skip
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            place = draw.randrange(len(data))
            piece = draw.choice((b"", b"\0", b"[", b":", b"\r\n", b"%", b"\xff", b"9" * 30))
            data[place : place + draw.randrange(3)] = piece
        with serving.say(bytes(data)) as sock:
            sock.shutdown(socket.SHUT_WR)
            try:
                while sock.recv(1 << 16):
                    pass
            except ConnectionResetError:
                pass
    assert serving.get("/v1/health")[0] == 200
    assert not [record for record in said.records if record.levelname == "ERROR"]


def test_one_connection_too_many_is_told_to_try_again(corpus):
    with Serving(corpus[0], limits=Limits(connections=2)) as serving:
        held = [serving.say(b"") for _ in range(2)]
        assert wait_until(lambda: len(serving.edge._connections) == 2)
        status, headers, body = serving.get("/v1/health")
        assert status == 503 and headers["retry-after"] == "1" and b"2 connections at once" in body
        for sock in held:
            sock.close()
        assert wait_until(lambda: serving.get("/v1/health")[0] == 200)


def test_an_order_for_which_there_is_no_memory_is_told_to_try_again(large):
    with Serving(large[0], Memory(limit=4 << 20)) as serving:
        status, headers, body = serving.get("/v1/streams/corpus?shuffle=buffer")
        assert status == 503 and headers["retry-after"] == "1" and b"MiB" in body
        assert serving.get("/v1/streams/corpus")[0] == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_source_that_breaks_never_looks_like_an_end(large, version):
    with Serving(large[0]) as serving:
        request = f"GET /v1/streams/corpus?epochs=0 HTTP/{version}\r\nHost: x\r\n\r\n"
        sock = serving.say(request.encode())
        assert sock.recv(1000).startswith(b"HTTP/%s 200" % version.encode())
        os.truncate(large[0], 1 << 20)
        if version == "1.0":
            with pytest.raises(ConnectionResetError):
                everything(sock)
        else:
            assert not everything(sock).endswith(b"0\r\n\r\n")
        assert wait_until(lambda: serving.edge.live.totals()["corpus", "http"].errors == 1)


def test_a_frame_that_is_damaged_from_the_start_gets_a_status(tmp_path):
    path = write_corpus(tmp_path / "c.zst", [b"x" * 200 + b"\n"] * 10)
    data = bytearray(open(path, "rb").read())
    data[12] ^= 0xFF
    open(path, "wb").write(data)
    with Serving(path) as serving:
        status, _, body = serving.get("/v1/streams/corpus?shuffle=none")
        assert status == 500 and json.loads(body)["error"] == "io"


def test_paused_clients_hold_next_to_nothing(large):
    memory = Memory(blocks=2)
    with Serving(large[0], memory) as serving:
        request = b"GET /v1/streams/corpus?seed=%d&epochs=0 HTTP/1.1\r\nHost: x\r\n\r\n"
        paused = [serving.say(request % seed) for seed in range(8)]
        for sock in paused:
            assert sock.recv(12) == b"HTTP/1.1 200"
        assert len(serving.get("/v1/streams/corpus")[2].splitlines()) == len(large[1])
        assert memory.held <= 3 * (1 << 20)
        for sock in paused:
            sock.close()
        assert wait_until(lambda: not serving.edge.live.streams())


def test_a_paused_client_finds_every_byte_when_it_goes_on(large):
    with Serving(large[0], Memory(blocks=1)) as serving:
        sock = serving.say(b"GET /v1/streams/corpus HTTP/1.1\r\nTE: trailers\r\nConnection: close\r\n\r\n")
        for seed in range(3):  # others take its block away meanwhile
            assert len(serving.get(f"/v1/streams/corpus?seed={seed}")[2].splitlines()) == len(large[1])
        body, trailers = body_of(everything(sock))
        assert sorted(body.splitlines(True)) == sorted(large[1])
        assert b"shuflr-xxh3: %016x" % core.xxh3(body) in trailers


def test_a_stall_can_be_bounded(large):
    with Serving(large[0], limits=Limits(stall=0.2)) as serving:
        sock = serving.say(b"GET /v1/streams/corpus?epochs=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
        assert wait_until(lambda: not serving.edge.live.streams())
        assert not everything(sock).endswith(b"0\r\n\r\n")


def test_a_client_that_leaves_is_no_error(large):
    with Serving(large[0]) as serving:
        sock = serving.say(b"GET /v1/streams/corpus?epochs=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
        sock.close()
        assert wait_until(lambda: not serving.edge.live.streams())
        assert serving.edge.live.totals()["corpus", "http"].errors == 0


def test_an_endless_stream_of_nothing_ends(tmp_path):
    with Serving(write_corpus(tmp_path / "empty.zst", [])) as serving:
        assert serving.get("/v1/streams/corpus?epochs=0") [2] == b""


def test_one_socket_speaks_both_protocols(corpus, tmp_path):
    memory, catalog = Memory(), Catalog([("corpus", corpus[0])], count=False)
    http_edge, wire_edge = HttpEdge(catalog, memory), WireEdge(catalog, memory)
    either = EitherEdge(http_edge, wire_edge)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    either.serve(listener)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(tmp_path / "s"))
            sock.sendall(b"GET /v1/streams/corpus HTTP/1.1\r\nConnection: close\r\n\r\n")
            body, _ = body_of(everything(sock))
        assert sorted(body.splitlines(True)) == sorted(corpus[1])
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(tmp_path / "s"))
            sock.sendall(encode(ClientHello(OpenStream(dataset_id="corpus").encode())))
            decoder = Decoder(ServerHello)
            decoder.feed(everything(sock))
            assert decoder.next().status == 0
    finally:
        assert either.drain(10.0) and http_edge.drain(10.0)
        wire_edge.drain(0.1)
