"""Whatever bytes a client sends, the wire server answers, refuses or closes, and serves the next one."""

import random
import socket
import struct

import pytest

from shuflr.wire import AddCredit, Cancel, ClientHello, Heartbeat, OpenStream, Pong, ServerHello, encode
from tests.server.conftest import lines, write_corpus
from tests.server.wire_client import Client, Serving, records_of

GOOD = encode(ClientHello(OpenStream("corpus", seed=3).encode()))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """(path, records)."""
    records = lines(300)
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl.zst", records), records


@pytest.fixture(scope="module")
def serving(corpus):
    with Serving(corpus[0]) as started:
        yield started


def mutated(draw):
    """A good hello that was cut, lengthened, or had bytes changed; or nothing of the kind."""
    data = bytearray(GOOD)
    for _ in range(draw.randrange(1, 6)):
        way = draw.randrange(5)
        if way == 0 and data:
            data[draw.randrange(len(data))] = draw.randrange(256)
        elif way == 1:
            del data[draw.randrange(len(data) + 1) :]
        elif way == 2:
            at = draw.randrange(len(data) + 1)
            data[at:at] = draw.randbytes(draw.randrange(40))
        elif way == 3:
            data[1:5] = struct.pack("<I", draw.choice((0, 1, 17, 1 << 17, (1 << 17) + 1, 1 << 29, (1 << 32) - 1)))
        else:
            data += encode(draw.choice((Heartbeat(1), AddCredit(1 << 63), Pong(0), Cancel(b"x" * 100))))
    return bytes(data)


@pytest.mark.parametrize("seed", range(60))
def test_hostile_hellos_do_not_hurt_the_next_client(serving, corpus, seed):
    draw = random.Random(seed)
    with Client(serving.address, speak=False) as client:
        try:
            client.sock.sendall(mutated(draw))
            client.sock.shutdown(socket.SHUT_WR)
            answer = client.next()
            assert answer is None or isinstance(answer, ServerHello)
        except ConnectionError:
            pass  # closed on what it had not read: as good an answer as any
    with Client(serving.address, seed=3) as client:
        assert sorted(records_of(client.rest())) == sorted(corpus[1])


def test_a_hello_may_come_byte_by_byte(serving, corpus):
    with Client(serving.address, speak=False) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GOOD:
            client.sock.send(bytes([byte]))
        assert sorted(records_of(client.rest())) == sorted(corpus[1])


def test_clients_that_vanish_at_any_byte_leave_nothing_behind(serving):
    for cut in range(0, len(GOOD), 7):
        with Client(serving.address, speak=False) as client:
            client.sock.sendall(GOOD[:cut])
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with Client(serving.address) as client:
        assert client.next().status == 0
