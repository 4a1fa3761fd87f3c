"""`shuflr serve` as a process: what it says, how it reloads, drains and ends, and what its workers do."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys

import pytest
import trustme

from tests.server.conftest import lines, write_corpus
from tests.server.serve_command import COMMAND, ServeCommand, children, wait_until


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of these tests alone, since a server keeps counts beside it: (path, records)."""
    records = lines(1000)
    return write_corpus(tmp_path_factory.mktemp("served") / "corpus.jsonl.zst", records), records


@pytest.fixture
def large(tmp_path):
    """A corpus whose epoch does not fit in socket buffers: (path, records)."""
    records = [b"%d %s\n" % (i, os.urandom(500).hex().encode()) for i in range(16_000)]
    return write_corpus(tmp_path / "large.zst", records, frame_size=1 << 19), records


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority, tmp_path_factory):
    """Paths of a server's chain, its key, and the authority."""
    folder = tmp_path_factory.mktemp("certificate")
    return issue(authority, folder)


def issue(authority, folder):
    issued = authority.issue_cert("127.0.0.1", "localhost")
    chain, key, ca = folder / "chain.pem", folder / "key.pem", folder / "ca.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    ca.write_bytes(authority.cert_pem.bytes())
    return chain, key, ca


def trusting(ca):
    return ssl.create_default_context(cafile=str(ca))


def test_it_says_where_it_listens_and_ends_on_a_signal(corpus, tmp_path):
    path = tmp_path / "socket"
    command = ("--http", "127.0.0.1:0", "--wire", "127.0.0.1:0", "--unix", path, "--dataset", f"c={corpus[0]}")
    with ServeCommand(*command, ready=3) as server:
        status, headers, body = server.get("/v1/streams/c?seed=1")
        assert status == 200 and sorted(body.splitlines(True)) == sorted(corpus[1])
        assert headers["shuflr-effective-seed"] == "1" and headers["shuflr-fingerprint"].startswith("blake3:")
        entry = server.said[0]
        assert (entry["datasets"], entry["tls"], entry["auth"]) == (1, False, "none")
        assert server.address("wire")[1] not in (0, server.address()[1])
        assert path.exists() and os.stat(path).st_mode & 0o077 == 0
        assert server.end(signal.SIGINT) == 0
    assert not path.exists()


@pytest.mark.parametrize("arguments, code, why", [
    ((), 64, "--http ADDR"),
    (("--http", "localhost:0", "--dataset", "c={path}"), 64, "numeric IP"),
    (("--http", "127.0.0.1", "--dataset", "c={path}"), 64, "IP:PORT"),
    (("--http", "127.0.0.1:0"), 64, "nothing to serve"),
    (("--http", "127.0.0.1:0", "--dataset", "c"), 64, "ID=PATH"),
    (("--http", "127.0.0.1:0", "--dataset", "a/b={path}"), 64, "only letters"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--dataset", "c={path}"), 64, "twice"),
    (("--http", "127.0.0.1:0", "--dataset", "c=/no/such/file"), 66, "No such file"),
    (("--http", "0.0.0.0:0", "--dataset", "c={path}"), 64, "--bind-public"),
    (("--wire", "[::]:0", "--dataset", "c={path}"), 64, "--bind-public"),
    (("--http", "0.0.0.0:0", "--dataset", "c={path}", "--bind-public"), 64, "--insecure-public"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--auth", "bearer"), 64, "requires --auth-tokens"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--auth", "bearer", "--auth-tokens", "/dev/null"), 64,
     "contains no tokens"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--auth", "mtls"), 64, "requires --tls-cert/--tls-key"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--tls-cert", "x"), 64, "go together"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--tls-cert", "{path}", "--tls-key", "{path}"), 64,
     "no certificate and its key"),
    (("--http", "127.0.0.1:0", "--dataset", "c={path}", "--workers", "0"), 64, "whole number"),
    (("--unix", "{path}", "--dataset", "c={path}"), 64, "not a socket"),
])  # fmt: skip
def test_what_it_cannot_serve_it_says_before_it_starts(corpus, arguments, code, why):
    command = [argument.replace("{path}", corpus[0]) for argument in arguments]
    done = subprocess.run([*COMMAND, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and why in done.stderr and done.stdout == ""


def test_a_port_that_is_taken_is_an_error(corpus):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*COMMAND, "--http", address, "--dataset", f"c={corpus[0]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70 and f"cannot listen on {address}" in done.stderr


def test_a_drain_cuts_no_block_and_never_looks_like_an_end(large):
    with ServeCommand("--http", "127.0.0.1:0", "--dataset", f"c={large[0]}") as server:
        sock, _ = server.open("/v1/streams/c?epochs=0")
        server.tell(signal.SIGTERM)
        body = bytearray()
        while piece := sock.recv(1 << 20):
            body += piece
        sock.close()
        assert not body.endswith(b"0\r\n\r\n")
        while body:  # every chunk that was begun is there, whole records in it
            size, _, rest = bytes(body).partition(b"\r\n")
            chunk = rest[: int(size, 16)]
            assert len(chunk) == int(size, 16) and chunk.endswith(b"\n")
            body = bytearray(rest[int(size, 16) + 2 :])
        assert server.process.wait(30) == 0


def test_a_drain_ends_in_time_though_a_client_does_not_read(large):
    command = ("--http", "127.0.0.1:0", "--dataset", f"c={large[0]}", "--drain-timeout", "0.3")
    with ServeCommand(*command) as server:
        sock, _ = server.open("/v1/streams/c?epochs=0")
        assert server.end() == 0
        assert any("were cut" in entry["message"] for entry in server.said)
        sock.close()


def test_a_reload_takes_tokens_and_datasets_and_cuts_no_stream(corpus, large, tmp_path):
    tokens, datasets = tmp_path / "tokens", tmp_path / "datasets"
    tokens.write_text("alpha\n")
    datasets.write_text(f"# served\nlarge={large[0]}\n")
    command = ("--http", "127.0.0.1:0", "--datasets", datasets, "--auth", "bearer", "--auth-tokens", tokens)
    old, new = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
    with ServeCommand(*command) as server:
        sock = socket.create_connection(server.address(), timeout=60)
        sock.sendall(b"GET /v1/streams/large HTTP/1.1\r\nAuthorization: Bearer alpha\r\nConnection: close\r\n\r\n")
        answer = bytearray(sock.recv(1000))
        tokens.write_text("beta\n")
        datasets.write_text(f"corpus={corpus[0]}\n")
        server.tell(signal.SIGHUP)
        server.until("reloaded")
        assert server.get("/v1/datasets/corpus", old)[0] == 401
        assert server.get("/v1/datasets/large", new)[0] == 404
        assert server.get("/v1/streams/corpus", new)[0] == 200
        while piece := sock.recv(1 << 20):
            answer += piece
        sock.close()
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n")
        tokens.write_text("")
        datasets.write_text("broken\n")
        server.tell(signal.SIGHUP)
        assert "tokens" in server.until("the old tokens stay")["message"]
        server.until("reloaded")
        assert server.get("/v1/streams/corpus", new)[0] == 200


def test_a_replaced_file_is_served_under_its_new_name_after_a_reload(tmp_path):
    path = write_corpus(tmp_path / "c.zst", lines(50))
    with ServeCommand("--http", "127.0.0.1:0", "--dataset", f"c={path}") as server:
        before = server.get("/v1/streams/c")
        write_corpus(tmp_path / "new.zst", lines(70, seed=2))
        shutil.move(tmp_path / "new.zst", path)
        status, _, body = server.get("/v1/streams/c")
        assert status == 409 and b"input_changed" in body
        server.tell(signal.SIGHUP)
        server.until("reloaded")
        status, headers, body = server.get("/v1/streams/c")
        assert status == 200 and sorted(body.splitlines(True)) == sorted(lines(70, seed=2))
        assert headers["shuflr-fingerprint"] != before[1]["shuflr-fingerprint"]


def test_certificates_are_taken_anew(corpus, authority, certificate, tmp_path):
    chain, key, ca = (shutil.copy(path, tmp_path) for path in certificate)
    command = ("--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", "--tls-cert", chain, "--tls-key", key)
    with ServeCommand(*command) as server:
        status, _, body = server.get("/v1/streams/c", context=trusting(ca))
        assert status == 200 and len(body.splitlines()) == len(corpus[1])
        other = trustme.CA()
        issue(other, tmp_path)
        server.tell(signal.SIGHUP)
        server.until("reloaded")
        with pytest.raises(ssl.SSLCertVerificationError):
            server.get("/v1/health", context=trusting(certificate[2]))
        assert server.get("/v1/health", context=trusting(tmp_path / "ca.pem"))[0] == 200


def test_a_client_without_a_certificate_stays_outside(corpus, authority, certificate, tmp_path):
    chain, key, ca = certificate
    command = ("--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", "--auth", "mtls", "--tls-cert", chain,
               "--tls-key", key, "--tls-client-ca", ca)  # fmt: skip
    with ServeCommand(*command) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.get("/v1/health", context=trusting(ca))
        known = trusting(ca)
        with authority.issue_cert("client").private_key_and_cert_chain_pem.tempfile() as pem:
            known.load_cert_chain(pem)
        assert server.get("/v1/streams/c", context=known)[0] == 200
    assert not any(entry["level"] == "error" for entry in server.said)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_share_a_port_and_one_that_dies_is_replaced(corpus):
    command = ("--http", "127.0.0.1:0", "--wire", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", "--workers", "3")
    with ServeCommand(*command, ready=2) as server:
        before = children(server.process.pid)
        assert len(before) == 3
        bodies = {server.get(f"/v1/streams/c?seed={seed % 2}")[2] for seed in range(8)}
        assert len(bodies) == 2
        os.kill(before[0], signal.SIGKILL)
        assert "killed by signal 9" in server.until("starting another")["message"]
        assert wait_until(lambda: len(children(server.process.pid)) == 3)
        assert before[0] not in children(server.process.pid)
        assert all(server.get("/v1/health")[0] == 200 for _ in range(8))
        metrics = server.get("/metrics")[2].decode()
        assert wait_until(lambda: "shuflr_processes 3.0" in server.get("/metrics")[2].decode()), metrics
        assert server.end() == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_when_their_parent_is_killed(corpus):
    with ServeCommand("--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", "--workers", "2") as server:
        pids = children(server.process.pid)
        server.end(signal.SIGKILL)
        assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_streams_of_all_workers_are_counted_together(corpus):
    with ServeCommand("--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", "--workers", "2") as server:
        for _ in range(6):
            assert server.get("/v1/streams/c")[0] == 200
        want = f'shuflr_records_total{{dataset="c",transport="http"}} {6.0 * len(corpus[1])}'
        assert wait_until(lambda: want in server.get("/metrics")[2].decode())


def test_a_reload_reaches_every_worker(corpus, tmp_path):
    datasets, path = tmp_path / "datasets", tmp_path / "socket"
    datasets.write_text(f"first={corpus[0]}\n")
    command = ("--http", "127.0.0.1:0", "--unix", path, "--datasets", datasets, "--workers", "2")
    with ServeCommand(*command, ready=2) as server:
        datasets.write_text(f"second={corpus[0]}\n")
        server.tell(signal.SIGHUP)
        told = {server.until("reloaded")["pid"] for _ in range(2)}
        assert len(told) == 2
        assert all(server.get("/v1/streams/second")[0] == 200 for _ in range(8))
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"GET /v1/datasets/second HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01", b"GET /v1/health HTTP/1.1\r\n\r\n"], ids=["", "half", "plain"])
def test_a_handshake_that_does_not_come_is_given_up(corpus, certificate, first):
    chain, key, ca = certificate
    command = ("--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", "--tls-cert", chain, "--tls-key", key,
               "--handshake-timeout", "0.2")  # fmt: skip
    with ServeCommand(*command) as server:
        with socket.create_connection(server.address(), timeout=60) as sock:
            sock.sendall(first)
            try:
                assert b"SERVING" not in sock.recv(1000)
            except ConnectionResetError:
                pass
        assert server.get("/v1/health", context=trusting(ca))[0] == 200
        server.end()
        assert not any(entry["level"] in ("error", "text") for entry in server.said)


def test_the_log_is_for_people_unless_it_is_told_otherwise(corpus):
    command = [*COMMAND, "--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    process.terminate()
    rest = process.communicate(timeout=60)[1]
    assert line.startswith("shuflr: INFO: serve(http) bound addr=127.0.0.1:")
    assert line.endswith(" datasets=1 tls=false auth=none\n") and rest == "shuflr: INFO: draining\n"
    assert process.returncode == 0


def test_connections_are_not_bounded_by_the_usual_limit_of_open_files(corpus):
    few = ("sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh")
    with ServeCommand("--http", "127.0.0.1:0", "--dataset", f"c={corpus[0]}", by=few) as server:
        held = [socket.create_connection(server.address(), timeout=60) for _ in range(100)]
        assert server.get("/v1/streams/c")[0] == 200
        for sock in held:
            sock.close()
