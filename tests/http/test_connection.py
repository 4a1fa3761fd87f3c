"""One blocking attempt over one kept-alive connection: what it sends, what it takes, and how another thread ends it."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from saturate import AdaptiveClient, FatalTransportError, Fixed
from saturate.http import connection as connection_module
from saturate.http.connection import Connection
from saturate.http.endpoint import parse_endpoint
from saturate.http.errors import AttemptFailed, Interrupted
from saturate.simulate import Faults, Simulator
from tests.conftest import chat, wait_until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True)
def _no_proxy_and_no_authority_of_this_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def read_request(conn: socket.socket) -> bytes:
    """One request with its body, or what came before the connection closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = conn.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = (int(length[0].split(b":")[1]) if length else 0) - len(body)
    while missing > 0:
        piece = conn.recv(missing)
        if not piece:
            break
        data += piece
        missing -= len(piece)
    return data


class Peer:
    """A server that does with each connection what a test says; every socket is closed at the end."""

    def __init__(self, handle: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None, host="127.0.0.1"):
        self.requests: list[bytes] = []
        self.connections = 0
        self._handle, self._tls = handle, tls
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(conn)
            self._start(self._serve, conn)

    def _serve(self, conn: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                conn = self._tls.wrap_socket(conn, server_side=True)
                self._open.append(conn)
            self._handle(conn)
        conn.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for conn in self._open:
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)
            conn.close()
        for thread in self._threads:
            thread.join(10)


def answering(*answers: bytes, then_close: bool = False) -> Peer:
    """Answers the requests of each connection with these, in turn and over again."""

    def handle(conn: socket.socket) -> None:
        turn = 0
        while True:
            request = read_request(conn)
            if not request:
                return
            peer.requests.append(request)
            conn.sendall(answers[turn % len(answers)])
            turn += 1
            if then_close:
                return

    peer = Peer(handle)
    return peer


def silent(conn: socket.socket) -> None:
    """Reads nothing and says nothing until the test ends."""
    while conn.fileno() >= 0:
        time.sleep(0.02)


def swallowing(conn: socket.socket) -> None:
    """Reads everything and says nothing."""
    while conn.recv(65536):
        pass


def connect(port: int, scheme: str = "http", host: str = "127.0.0.1") -> Connection:
    return Connection(parse_endpoint(f"{scheme}://{host}:{port}/v1"))


def post(connection: Connection, body: bytes = b"{}", read_timeout_s: float = 30.0, **headers: str) -> Any:
    return connection.send("POST", "/x", body, headers, read_timeout_s)


# -- one request, one answer


def test_a_request_is_one_message_with_its_own_headers_and_route():
    with answering(OK) as peer:
        connection = connect(peer.port)
        answer = post(connection, b'{"a":1}', Authorization="Bearer k")
        connection.close()
    assert (answer.status, answer.body) == (200, b"{}")
    head, _, body = peer.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/x HTTP/1.1" and body == b'{"a":1}'
    assert b"Authorization: Bearer k" in lines and b"Content-Length: 7" in lines
    assert f"Host: 127.0.0.1:{peer.port}".encode() in lines


def test_the_connection_is_kept_and_its_owner_is_seen_busy():
    with answering(OK) as peer:
        connection = connect(peer.port)
        assert connection.busy_since is None
        for _ in range(5):
            post(connection)
            assert connection.busy_since is None
        assert (peer.connections, len(peer.requests)) == (1, 5)
        connection.close()
        post(connection)
        assert peer.connections == 2
        connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_a_connection_that_the_server_means_to_close_is_not_used_again(answer):
    with answering(answer, then_close=True) as peer:
        connection = connect(peer.port)
        assert [post(connection).body for _ in range(4)] == [b"{}"] * 4
        assert (peer.connections, len(peer.requests)) == (4, 4)
        connection.close()


SURPLUS = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"


def test_bytes_behind_an_answer_are_no_answer_to_the_next_request():
    with answering(OK + SURPLUS) as peer:
        connection = connect(peer.port)
        assert [post(connection).body for _ in range(3)] == [b"{}"] * 3
        connection.close()


def test_bytes_that_arrive_between_two_requests_end_the_connection():
    def handle(conn: socket.socket) -> None:
        while read_request(conn):
            conn.sendall(OK)
            time.sleep(0.02)
            conn.sendall(SURPLUS)
            sent.set()

    sent = threading.Event()
    with Peer(handle) as peer:
        connection = connect(peer.port)
        for turn in range(3):
            assert post(connection).body == b"{}"
            assert sent.wait(10)
            sent.clear()
            assert peer.connections == turn + 1
        connection.close()


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_interim_answers_come_before_the_answer(interim):
    """RFC 9110, 15.2: a client must be able to read one or more of them though it asked for none."""
    with answering(2 * (b"HTTP/1.1 " + interim + b"\r\nLink: </x>\r\n\r\n") + OK) as peer:
        connection = connect(peer.port)
        assert [post(connection).status for _ in range(3)] == [200] * 3
        connection.close()


def test_an_answer_after_an_interim_one_is_with_its_own_request():
    """A proxy that keeps a long generation alive with 102s: what comes late belongs to the request before."""

    def handle(conn: socket.socket) -> None:
        while request := read_request(conn):
            conn.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
            time.sleep(0.1)
            body = request.partition(b"\r\n\r\n")[2]
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with Peer(handle) as peer:
        connection = connect(peer.port)
        answers = [(post(connection, b"%d" % i), i) for i in range(4)]
        assert [(answer.status, answer.body) for answer, i in answers] == [(200, b"%d" % i) for _, i in answers]
        connection.close()


def test_an_answer_without_a_body_is_an_empty_body():
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as peer:
        connection = connect(peer.port)
        assert [(a.status, a.body) for a in (post(connection), post(connection))] == [(204, b"")] * 2
        assert peer.connections == 1
        connection.close()


def test_a_body_that_ends_with_the_connection_is_whole():
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3_000_000, then_close=True) as peer:
        connection = connect(peer.port)
        assert post(connection).body == b"x" * 3_000_000
        connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2dc6c0\r\n" + b"x" * 3_000_000 + b"\r\n0\r\n\r\n",
    ],
)
def test_a_long_body_is_read_and_the_connection_kept(answer):
    with answering(answer) as peer:
        connection = connect(peer.port)
        assert [len(post(connection).body) for _ in range(2)] == [3_000_000] * 2
        assert peer.connections == 1
        connection.close()


def test_a_body_without_an_end_in_sight_is_a_fault(monkeypatch):
    monkeypatch.setattr(connection_module, "MAX_BODY_BYTES", 2_000_000)
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000_000, then_close=True) as peer:
        with pytest.raises(AttemptFailed, match="RemoteProtocolError: the body is longer than 2000000 bytes"):
            post(connect(peer.port))


def test_a_large_body_is_sent_whole():
    body = os.urandom(4_000_000)
    with answering(OK) as peer:
        connection = connect(peer.port)
        post(connection, body)
        connection.close()
    assert peer.requests[0].endswith(body)


def test_a_server_that_refuses_a_large_body_before_reading_it_is_heard():
    def refuse(conn: socket.socket) -> None:
        conn.recv(1000)
        conn.sendall(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big")
        time.sleep(0.1)
        # Closing with unread data resets the connection, under a client that is still sending.

    with Peer(refuse) as peer:
        connection = connect(peer.port)
        answer = post(connection, bytes(20_000_000))
        connection.close()
    assert (answer.status, answer.body) == (413, b"too big")


# -- what goes wrong


def failure(port: int, **options: Any) -> AttemptFailed:
    connection = connect(port)
    with pytest.raises(AttemptFailed) as raised:
        post(connection, **options)
    assert connection.busy_since is None
    connection.close()
    return raised.value


def test_nobody_listening_is_a_connect_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = failure(unused.getsockname()[1])
    assert str(error).startswith("transport: ConnectError: 127.0.0.1:") and "refused" in str(error).lower()


def test_a_name_that_does_not_exist_is_a_connect_error():
    with pytest.raises(AttemptFailed, match="transport: ConnectError: no-such-host.invalid:80: "):
        post(Connection(parse_endpoint("http://no-such-host.invalid/v1")))


def test_a_connection_closed_without_an_answer_is_a_protocol_error():
    with Peer(lambda conn: None) as peer:
        error = failure(peer.port)
    assert str(error).startswith("transport: R")


def test_silence_is_a_read_time_out():
    with Peer(swallowing) as peer:
        error = failure(peer.port, read_timeout_s=0.1)
    assert str(error) == "transport: ReadTimeout: no answer in 0.1 s"


def test_a_server_that_stops_reading_is_a_write_time_out(monkeypatch):
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 0.2)
    with Peer(silent) as peer:
        error = failure(peer.port, body=bytes(50_000_000))
    assert str(error) == "transport: WriteTimeout: the server stopped reading the request"


def test_a_server_that_does_not_accept_is_a_connect_time_out(monkeypatch):
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 0.2)
    with full_backlog() as port:
        error = failure(port)
    assert str(error) == "transport: ConnectTimeout: no connection in 0.2 s"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: x\r\n" % i for i in range(200)) + b"\r\n",
    ],
)
def test_what_is_not_http_or_not_whole_is_a_protocol_error_and_the_next_attempt_starts_afresh(answer):
    with answering(answer, then_close=True) as peer:
        connection = connect(peer.port)
        for _ in range(2):
            with pytest.raises(AttemptFailed, match=r"transport: (RemoteProtocolError|ReadError): "):
                post(connection)
        assert peer.connections == 2
        connection.close()


def test_a_header_that_cannot_be_sent_fails_at_the_call():
    """A key pasted with typographic quotes is the user's mistake, not each row's."""
    with pytest.raises(ValueError, match="Authorization"):
        AdaptiveClient("http://127.0.0.1:9/v1", headers={"Authorization": "Bearer \u201ckey\u201d"})


# -- ended by another thread


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose queue of connections is full: a further one hangs in its first packet."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        time.sleep(0.05)
        yield listener.getsockname()[1]


class Sender:
    """A thread in the middle of an attempt, and how that ended."""

    def __init__(self, connection: Connection, body: bytes = b"{}"):
        self.connection = connection
        self.outcome: Any = None
        self.thread = threading.Thread(target=self._send, args=(body,), daemon=True)
        self.thread.start()
        assert wait_until(lambda: connection.busy_since is not None)
        # Into its system call.
        time.sleep(0.1)
        assert self.thread.is_alive(), self.outcome

    def _send(self, body: bytes) -> None:
        try:
            self.outcome = post(self.connection, body, read_timeout_s=600.0)
        except Exception as exc:
            self.outcome = exc

    def ended(self) -> bool:
        """Whether the attempt ends soon, far sooner than by any of its own time-outs."""
        self.thread.join(5)
        return not self.thread.is_alive()


def drip(conn: socket.socket) -> None:
    read_request(conn)
    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        conn.sendall(b"x")
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("handle", "body"),
    [(swallowing, b"{}"), (silent, bytes(50_000_000)), (drip, b"{}")],
    ids=["waiting", "sending", "reading"],
)
def test_an_interrupt_ends_the_attempt_wherever_it_blocks(handle, body):
    with Peer(handle) as peer:
        sender = Sender(connect(peer.port), body)
        sender.connection.interrupt()
        assert sender.ended() and isinstance(sender.outcome, Interrupted)


def test_an_interrupt_ends_an_attempt_that_is_connecting():
    with full_backlog() as port:
        sender = Sender(connect(port))
        sender.connection.interrupt()
        assert sender.ended() and isinstance(sender.outcome, Interrupted)


def test_an_interrupt_ends_an_attempt_that_is_shaking_hands():
    """A TLS server that accepts and then says nothing."""
    with Peer(swallowing) as peer:
        sender = Sender(connect(peer.port, "https"))
        sender.connection.interrupt()
        assert sender.ended() and isinstance(sender.outcome, Interrupted)


def test_an_interrupt_ends_an_attempt_that_waits_for_its_proxy(monkeypatch):
    with Peer(swallowing) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        sender = Sender(connect(443, "https", "example.invalid"))
        sender.connection.interrupt()
        assert sender.ended() and isinstance(sender.outcome, Interrupted)


def test_an_interrupted_connection_never_sends_again():
    with answering(OK) as peer:
        connection = connect(peer.port)
        connection.interrupt()
        for _ in range(2):
            with pytest.raises(Interrupted):
                post(connection)
        assert peer.requests == []


def test_an_interrupt_between_attempts_closes_what_was_kept():
    with answering(OK) as peer:
        connection = connect(peer.port)
        post(connection)
        connection.interrupt()
        with pytest.raises(Interrupted):
            post(connection)
        assert len(peer.requests) == 1


@pytest.mark.parametrize("handle", [swallowing, drip], ids=["waiting", "reading"])
def test_an_attempt_that_is_overdue_is_a_time_out_and_the_next_one_works(handle):
    turns: list[int] = []

    def first_slow(conn: socket.socket) -> None:
        turns.append(1)
        if len(turns) == 1:
            handle(conn)
        read_request(conn)
        conn.sendall(OK)

    with Peer(first_slow) as peer:
        sender = Sender(connect(peer.port))
        sender.connection.expire()
        assert sender.ended()
        assert str(sender.outcome) == "transport: ReadTimeout: the answer did not end in time"
        assert isinstance(sender.outcome, AttemptFailed)
        assert post(sender.connection).status == 200
        sender.connection.close()


def test_a_close_from_its_owner_after_each_end_leaves_no_descriptor():
    gc.collect()  # what earlier tests left to be collected is not this one's
    before = len(os.listdir("/proc/self/fd"))
    with Peer(swallowing) as peer:
        for _ in range(5):
            sender = Sender(connect(peer.port))
            sender.connection.interrupt()
            assert sender.ended()
            with pytest.raises(AttemptFailed):
                post(connect(peer.port), read_timeout_s=0.01)
    assert len(os.listdir("/proc/self/fd")) == before


# -- addresses, proxies, TLS


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_ipv6_literal_is_an_address():
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(Simulator(latency_s=0, host="::1"))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        assert "[::1]" in server.endpoint
        with AdaptiveClient(server.endpoint, window=Fixed(2)) as client:
            assert client.post(chat({"text": "hi"}))[1] is None


def test_a_name_with_several_addresses_is_tried_at_each():
    with Simulator(latency_s=0) as server:
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 9)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
        ]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(connection_module.socket, "getaddrinfo", lambda *_: addresses)
            connection = connect(server.port, host="two-addresses")
            answer = connection.send("GET", "/models", b"", {}, 10)
            connection.close()
    assert answer.status < 500


def proxy(refuse: bytes = b"") -> Peer:
    """Forwards CONNECTs to wherever they name on this machine, and answers other requests itself."""

    def handle(conn: socket.socket) -> None:
        request = read_request(conn)
        peer.requests.append(request)
        if refuse:
            conn.sendall(refuse)
            return
        if not request.startswith(b"CONNECT "):
            while request:
                conn.sendall(OK)
                request = read_request(conn)
                peer.requests.append(request)
            return
        port = int(request.split()[1].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port)) as beyond:
            conn.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=copy, args=(beyond, conn), daemon=True)
            back.start()
            copy(conn, beyond)
            back.join(10)

    peer = Peer(handle)
    return peer


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def test_plain_http_is_forwarded_by_the_proxy_which_gets_its_credentials(monkeypatch):
    with proxy() as via:
        monkeypatch.setenv("http_proxy", f"http://user:pa%20ss@127.0.0.1:{via.port}")
        with AdaptiveClient("http://engine.invalid:8000/v1", window=Fixed(1), signal_source="none") as client:
            assert client.post({"a": 1}, "/x") == ({}, None)
            assert client.post({"a": 2}, "/x") == ({}, None)
    lines = via.requests[0].split(b"\r\n")
    assert lines[0] == b"POST http://engine.invalid:8000/v1/x HTTP/1.1"
    assert b"Host: engine.invalid:8000" in lines
    assert b"dXNlcjpwYSBzcw==" in [line for line in lines if line.lower().startswith(b"proxy-authorization:")][0]
    assert via.connections == 1


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    """A self-signed certificate for 127.0.0.1 and localhost, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(path.with_name("key.pem")), "-out", str(path.with_name("cert.pem"))]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return path.with_name("cert.pem")


@pytest.fixture
def tls(certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


def serving(tls: ssl.SSLContext) -> Peer:
    def handle(conn: socket.socket) -> None:
        while request := read_request(conn):
            peer.requests.append(request)
            conn.sendall(OK)

    peer = Peer(handle, tls)
    return peer


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_private_authority_named_by_the_environment_is_trusted(monkeypatch, certificate, tls, variable, host):
    monkeypatch.setenv(variable, str(certificate))
    with serving(tls) as peer:
        connection = connect(peer.port, "https", host)
        assert [post(connection).body for _ in range(3)] == [b"{}"] * 3
        assert peer.connections == 1
        connection.close()


def test_a_certificate_that_nobody_vouches_for_ends_the_run_with_a_sentence(tls):
    with serving(tls) as peer:
        connection = connect(peer.port, "https")
        with pytest.raises(FatalTransportError, match=r"not trusted \(self.signed certificate\).*SSL_CERT_FILE"):
            post(connection)
        assert peer.requests == []


def test_a_certificate_for_another_name_ends_the_run(monkeypatch, certificate, tls):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(connection_module.socket, "getaddrinfo", resolved_here)
    with serving(tls) as peer:
        with pytest.raises(FatalTransportError, match="not trusted .*another.invalid"):
            post(connect(peer.port, "https", "another.invalid"))
        assert peer.requests == []


def resolved_here(host: str, port: int, *_: Any) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def test_an_https_address_of_a_plain_server_is_a_connect_error():
    def plain(conn: socket.socket) -> None:
        conn.recv(65536)
        conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Peer(plain) as peer:
        with pytest.raises(AttemptFailed, match="transport: ConnectError: "):
            post(connect(peer.port, "https"))


def test_https_goes_through_the_proxys_tunnel_and_the_proxy_sees_no_key(monkeypatch, certificate, tls):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with proxy() as via, serving(tls) as peer:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{via.port}")
        end = f"https://localhost:{peer.port}/v1"
        with AdaptiveClient(end, Fixed(1), {"Authorization": "Bearer k"}, signal_source="none") as client:
            assert client.post({"a": 1}, "/x") == ({}, None)
            assert client.post({"a": 2}, "/x") == ({}, None)
        assert (via.connections, peer.connections, len(peer.requests)) == (1, 1, 2)
    assert via.requests[0].startswith(f"CONNECT localhost:{peer.port} HTTP/1.".encode())
    assert b"dXNlcjpzZWNyZXQ=" in via.requests[0] and b"Bearer" not in via.requests[0]
    assert peer.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert b"Bearer k" in peer.requests[0] and b"proxy-authorization" not in peer.requests[0].lower()


def test_a_proxy_that_refuses_the_tunnel_is_a_connect_error_with_its_status(monkeypatch):
    with proxy(refuse=b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n") as via:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{via.port}")
        with pytest.raises(AttemptFailed, match="transport: ConnectError: .*407"):
            post(connect(443, "https", "example.invalid"))


def test_a_host_named_by_no_proxy_is_reached_directly(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Simulator(latency_s=0, faults=Faults()) as server, AdaptiveClient(server.endpoint, Fixed(1)) as client:
        assert client.post(chat({"text": "hi"}))[1] is None
