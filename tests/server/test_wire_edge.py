"""The wire edge under clients that stall, leave, lie, and are too many; and how it ends."""

import json
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from shuflr.order.slots import Buffer
from shuflr.server.memory import Memory
from shuflr.server.wire_edge import Limits
from shuflr.wire import (
    AddCredit,
    Cancel,
    ClientHello,
    EpochBoundary,
    Heartbeat,
    OpenStream,
    PlainBatch,
    StreamClosed,
    StreamError,
)
from tests.conftest import wait_until
from tests.server.conftest import lines, write_corpus
from tests.server.wire_client import Client, Serving, records_of


@pytest.fixture
def serving(corpus):
    with Serving(corpus[0]) as started:
        yield started


@pytest.fixture
def large(tmp_path):
    """A corpus whose epoch does not fit in socket buffers: (path, records)."""
    records = [b"%d %s\n" % (i, os.urandom(500).hex().encode()) for i in range(16_000)]
    return write_corpus(tmp_path / "large.zst", records, frame_size=1 << 19), records


@pytest.mark.parametrize("asked, mode", [
    ({}, 1),
    ({"capabilities": 6}, 3),
    ({"mode": "plain-batch"}, 3),
    ({"mode": "zstd-batch"}, 2),
    ({"mode": "zstd-batch", "capabilities": 1}, 3),
    ({"shuffle": "none"}, 3),
    ({"shuffle": "none", "mode": "raw-frame"}, 3),
    ({"rank": 1, "world_size": 3}, 1),
    ({"rank": 1, "world_size": 3, "capabilities": 6}, 3),
    ({"world_size": 3}, 1),
], ids=str)  # fmt: skip
def test_every_way_to_travel_brings_the_same_records(serving, corpus, asked, mode):
    with Client(serving.address, seed=5, **asked) as client:
        hello, *messages, boundary, closed = client.rest()
    assert (hello.status, hello.mode) == (0, mode)
    plain = {**asked, "mode": "plain-batch", "capabilities": 7}
    with Client(serving.address, seed=5, **plain) as client:
        assert records_of(messages) == records_of(client.rest())
    count = len(records_of(messages))
    assert (boundary, closed) == (EpochBoundary(0, count), StreamClosed(count, 1))
    assert count == len(corpus[1]) or "rank" in asked


def test_batches_are_bounded_in_bytes(tmp_path):
    path = write_corpus(tmp_path / "wide.zst", [b"x" * 100_000 + b"\n"] * 40, frame_size=1 << 20)
    with Serving(path) as serving, Client(serving.address, capabilities=6, max_batch_records=4096) as client:
        sizes = [len(message.data) for message in client.rest() if isinstance(message, PlainBatch)]
    assert sum(sizes) == 40 * 100_004 and max(sizes) <= (1 << 18) + 100_004


@pytest.mark.parametrize("mode, skip_in_frame", [("raw-frame", True), ("plain-batch", False), ("zstd-batch", False)])
def test_a_stream_is_resumed_where_the_client_says(serving, corpus, mode, skip_in_frame):
    with Client(serving.address, seed=5, epochs=2, mode=mode) as client:
        whole = records_of(client.rest())
    skip = len(corpus[1]) + 123
    with Client(serving.address, seed=5, epochs=2, mode=mode, skip=skip) as client:
        hello, *messages = client.rest()
    opened = json.loads(hello.opened)
    assert opened["resumed_at"] == skip
    assert ("skip_in_frame" in opened) == skip_in_frame
    assert records_of(messages)[opened.get("skip_in_frame", 0) :] == whole[skip:]
    assert messages[-1] == StreamClosed(len(whole), 2)


def test_a_fingerprint_that_is_not_the_datasets_is_refused(serving):
    label = serving.catalog["corpus"].label
    with Client(serving.address, fingerprint=label) as client:
        assert client.next().status == 0
    with Client(serving.address, fingerprint="blake3:" + "0" * 64) as client:
        (hello,) = client.rest()
    assert hello.status == 1 and b"dataset changed" in hello.opened


def test_the_length_is_told_once_it_is_known(serving, corpus):
    with Client(serving.address) as client:
        assert b"total_records" not in client.next().opened
    serving.catalog["corpus"].counts.complete()
    with Client(serving.address, epochs=3) as client:
        assert json.loads(client.next().opened)["total_records"] == 3 * len(corpus[1])


@pytest.mark.parametrize("capabilities", [7, 6])
def test_a_cancel_ends_an_endless_stream_with_what_was_sent(serving, capabilities):
    with Client(serving.address, epochs=0, capabilities=capabilities) as client:
        assert client.next().status == 0
        client.say(AddCredit(1 << 20))
        client.say(Cancel(b"enough"))
        messages = client.rest()
    assert isinstance(messages[-1], StreamClosed)
    assert messages[-1].records >= len(records_of(messages))


@pytest.mark.parametrize("capabilities", [7, 6])
def test_nonsense_in_mid_stream_ends_it_with_an_error(serving, capabilities):
    with Client(serving.address, epochs=0, capabilities=capabilities) as client:
        assert client.next().status == 0
        client.sock.sendall(b"\x63 what is this")
        last = client.rest()[-1]
    assert isinstance(last, StreamError) and last.fatal and "no kind of message" in last.detail


def test_a_client_that_leaves_frees_its_thread(serving):
    with Client(serving.address, epochs=0) as client:
        assert client.next().status == 0
        assert serving.edge.live.streams()
    assert wait_until(lambda: not serving.edge.live.streams())
    assert serving.edge.live.totals()["corpus", "raw-frame"].errors == 0


def test_many_paused_clients_hold_next_to_nothing(large):
    """Each holds what its socket holds; the blocks go to those who read."""
    memory = Memory(blocks=2)
    path, records = large
    with Serving(path, memory) as serving:
        paused = [Client(serving.address, epochs=0, capabilities=6, seed=i) for i in range(8)]
        for client in paused:
            assert client.next().status == 0
        with Client(serving.address, capabilities=6) as reader:
            assert len(records_of(reader.rest())) == len(records)
        assert memory.held <= 3 * (1 << 20)
        assert all(isinstance(client.next(), PlainBatch) for client in paused)
        for client in paused:
            client.sock.close()


@pytest.mark.parametrize("capabilities", [7, 6])
def test_a_paused_client_finds_every_byte_when_it_goes_on(large, capabilities):
    path, records = large
    memory = Memory(blocks=1)
    with Serving(path, memory) as serving:
        client = Client(serving.address, capabilities=capabilities)
        assert client.next().status == 0
        for seed in range(3):  # others take its block away meanwhile
            with Client(serving.address, capabilities=6, seed=seed) as other:
                assert len(records_of(other.rest())) == len(records)
        with client:
            assert sorted(records_of(client.rest())) == sorted(records)


@pytest.mark.parametrize("how", ["nothing", "half"])
def test_a_handshake_that_does_not_come_is_given_up(corpus, how):
    with Serving(corpus[0], limits=Limits(handshake=0.2)) as serving, Client(serving.address, speak=False) as client:
        if how == "half":
            client.sock.sendall(b"\0\x40\0\0\0SHUFLRW1")
        assert client.sock.recv(1) == b""


def test_an_unknown_client_makes_the_server_hold_little(serving):
    """A hello may announce 512 MiB; it is refused as soon as its length is seen."""
    with Client(serving.address, speak=False) as client:
        client.sock.sendall(struct.pack("<BI", 0, 512 << 20))
        assert client.sock.recv(1) == b""


def test_one_connection_too_many_is_told_so(corpus):
    with Serving(corpus[0], limits=Limits(connections=2)) as serving:
        clients = [Client(serving.address, epochs=0) for _ in range(2)]
        assert all(client.next().status == 0 for client in clients)
        with Client(serving.address) as client:
            (hello,) = client.rest()
            assert hello.status == 1 and b"2 connections at once" in hello.opened
        clients.pop().sock.close()
        assert wait_until(lambda: len(serving.edge.live.streams()) == 1)
        assert wait_until(lambda: Client(serving.address, epochs=1).next().status == 0)
        clients.pop().sock.close()


def test_heartbeats_go_out_while_there_is_nothing_to_send(large):
    """All memory is in another stream's hands, so this one has nothing; it says that it is alive."""
    memory = Memory(blocks=1)
    path, records = large
    with Serving(path, memory, limits=Limits(heartbeat=0.1)) as serving:
        lease = memory.lease(1)
        with lease:  # entered, so that nobody can take it back
            client = Client(serving.address, capabilities=6)
            assert client.next().status == 0
            assert isinstance(client.next(), Heartbeat) and isinstance(client.next(), Heartbeat)
        memory.release(lease)
        with client:
            assert len(records_of(client.rest())) == len(records)


@pytest.mark.parametrize("capabilities", [7, 6])
def test_a_draining_server_finishes_its_message_and_says_why(large, capabilities):
    with Serving(large[0]) as serving:
        client = Client(serving.address, epochs=0, capabilities=capabilities)
        assert client.next().status == 0
        ended = []
        drain = threading.Thread(target=lambda: ended.append(serving.edge.drain(60.0)))
        drain.start()
        last = client.rest()[-1]
        client.sock.close()
        drain.join()
    assert isinstance(last, StreamError) and last.code == 5 and "shutting down" in last.detail
    assert ended == [True]


def test_a_drain_does_not_wait_longer_than_it_is_told(large, tmp_path):
    """A client that stops reading in the middle of a message that no socket buffer holds is cut."""
    path = write_corpus(tmp_path / "blocks.zst", large[1], frame_size=15 << 20)
    with Serving(path) as serving, Client(serving.address, epochs=0, capabilities=6) as client:
        assert client.next().status == 0
        assert wait_until(lambda: not serving.edge.live.streams()[0].stream.between)
        assert not serving.edge.drain(0.2)


@pytest.mark.parametrize("capabilities", [7, 6])
def test_a_file_cut_under_a_stream_is_reported_and_never_read_as_its_end(large, capabilities):
    path, records = large
    with Serving(path) as serving, Client(serving.address, epochs=0, capabilities=capabilities) as client:
        assert client.next().status == 0
        os.truncate(path, 1 << 20)
        got = []
        try:
            while (message := client.next()) is not None:
                got.append(message)
        except (ConnectionResetError, AssertionError):
            message = None  # in the middle of a message there is nothing to say but a reset
        else:
            assert isinstance(got[-1], StreamError) and "dataset changed" in got[-1].detail
    assert set(records_of(got)) <= set(records)
    assert not any(isinstance(message, (StreamClosed, EpochBoundary)) for message in got)


def test_a_damaged_frame_is_never_streamed(tmp_path):
    path = write_corpus(tmp_path / "c.zst", lines(1000), frame_size=4096)
    data = bytearray((tmp_path / "c.zst").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "c.zst").write_bytes(data)
    with Serving(path) as serving, Client(serving.address, capabilities=6) as client:
        messages = client.rest()
    assert isinstance(messages[-1], StreamError) and messages[-1].code == 3
    assert set(records_of(messages)) < set(lines(1000))


def test_a_unix_socket_serves_as_well(corpus, tmp_path):
    with Serving(corpus[0]) as serving:
        listener = socket.socket(socket.AF_UNIX)
        address = os.path.relpath(tmp_path / "s")
        listener.bind(address)
        listener.listen()
        serving.edge.serve(listener)
        with Client(address) as client:
            assert len(records_of(client.rest())) == len(corpus[1])


def test_tls_carries_the_same_stream(corpus, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
         str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=certificate)
    with Serving(corpus[0], tls=context) as serving:
        for capabilities in (7, 6):
            client = Client(serving.address, speak=False)
            client.sock = trust.wrap_socket(client.sock, server_hostname="localhost")
            client.say(ClientHello(OpenStream("corpus").encode(), capabilities))
            with client:
                assert len(records_of(client.rest())) == len(corpus[1])
        with Client(serving.address) as plain, suppress(ConnectionResetError):  # nothing is served without TLS
            assert plain.sock.recv(1 << 16)[:1] != b"\0"


def test_many_streams_at_once_each_get_all_of_theirs(serving, corpus):
    results = {}

    def run(seed):
        with Client(serving.address, seed=seed, capabilities=7 if seed % 2 else 6) as client:
            results[seed] = sorted(records_of(client.rest()))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 24 and all(found == sorted(corpus[1]) for found in results.values())
    totals = serving.edge.live.totals()
    assert wait_until(lambda: serving.edge.live.totals()["corpus", "raw-frame"].active == 0)
    assert totals["corpus", "raw-frame"].records + totals["corpus", "plain-batch"].records == 24 * len(corpus[1])


def test_a_live_stream_shows_where_it_is(large):
    with Serving(large[0]) as serving, Client(serving.address, epochs=0, capabilities=6) as client:
        client.next()
        assert wait_until(lambda: serving.edge.live.streams()[0].stream.records > 0)
        (live,) = serving.edge.live.streams()
        assert (live.dataset, live.transport) == ("corpus", "plain-batch")
        assert live.began <= time.time() and live.stream.bytes > 0 and live.peer.startswith("127.0.0.1:")


def test_an_order_that_takes_long_to_begin_keeps_nobody_else_waiting(corpus, monkeypatch):
    """Filling a ring, or running again up to a place, may take minutes."""
    ready = threading.Event()
    honest = Buffer.epoch

    def slow(self, start):
        assert ready.wait(60)
        yield from honest(self, start)

    monkeypatch.setattr(Buffer, "epoch", slow)
    with Serving(corpus[0]) as serving:
        slow_ones = [Client(serving.address, shuffle="buffer") for _ in range(12)]
        assert all(client.next().status == 0 for client in slow_ones)
        for mode in ("raw-frame", "plain-batch"):
            with Client(serving.address, mode=mode) as client:
                assert len(records_of(client.rest())) == len(corpus[1])
        ready.set()
        for client in slow_ones:
            with client:
                assert len(records_of(client.rest())) == len(corpus[1])
