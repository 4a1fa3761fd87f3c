"""The published client wheel, unchanged, against our server: the records that the order itself gives, on the wire."""

import hashlib
import itertools
import json
import os
import socket
import subprocess
from pathlib import Path

import peers
import pytest

from shuflr.order import Options, open_order
from shuflr.order.position import Position
from shuflr.records.sieve import Partition
from shuflr.server.catalog import Catalog
from shuflr.server.memory import Memory
from shuflr.server.wire_edge import WireEdge
from tests.server.conftest import lines, write_corpus

pytestmark = pytest.mark.interop
SCRIPT = Path(__file__).with_name("published_client.py")


class PublishedClient:
    """The wheel in an interpreter of its own."""

    def __init__(self, python, cwd):
        self._process = subprocess.Popen(
            [python, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd,
            env=peers.environment_variables(),
        )  # fmt: skip

    def get(self, url, **options):
        self._process.stdin.write(json.dumps([url, options]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    try:
        python = peers.peer_python("shuflr_client")
    except peers.NoPython as missing:
        pytest.skip(str(missing))
    client = PublishedClient(python, str(tmp_path_factory.mktemp("published")))
    yield client
    client.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(port, path): a corpus with empty records and records that end in CR, on the wire."""
    records = [*lines(3000, seed=2), b"\n", b"with a carriage return\r\n", b"\n"]
    path = write_corpus(tmp_path_factory.mktemp("served") / "corpus.jsonl.zst", records, frame_size=4096)
    edge = WireEdge(Catalog([("corpus", path)]), Memory())
    listener = socket.create_server(("127.0.0.1", 0))
    edge.serve(listener)
    yield listener.getsockname()[1], path
    edge.drain(10.0)


def expected(path, shuffle="chunk-shuffled", seed=0, epochs=1, sample=None, rank=None, world_size=None):
    """What the client has to get. Its own `sample` counts over all epochs."""
    partition = Partition() if rank is None else Partition.of(rank, world_size)
    order = open_order(path, shuffle, Options(seed=seed, partition=partition))
    found = itertools.chain.from_iterable(
        b"".join(bytes(block.data) for block in order.epoch(Position(epoch))).split(b"\n")[:-1]
        for epoch in range(epochs)
    )
    records = list(itertools.islice(found, sample))
    digest = hashlib.sha256(b"".join(record + b"\n" for record in records)).hexdigest()
    return {"count": len(records), "sha256": digest}


@pytest.mark.parametrize("options", [
    {},
    {"seed": 42},
    {"seed": 7, "epochs": 3},
    {"seed": 7, "sample": 100},
    {"seed": 7, "rank": 1, "world_size": 4, "epochs": 2},
    {"shuffle": "none"},
    {"shuffle": "none", "rank": 2, "world_size": 3},
    {"shuffle": "buffer", "seed": 3},
    {"shuffle": "reservoir", "seed": 3},
    {"shuffle": "index-perm", "seed": 3, "epochs": 2},
], ids=json.dumps)  # fmt: skip
def test_the_published_client_gets_its_records_on_the_wire(published, served, options):
    port, path = served
    got = published.get(f"shuflr://127.0.0.1:{port}/corpus", **options)
    assert got == {"transport": "shuflr-wire/1", **expected(path, **options)}


@pytest.mark.parametrize("url, options, why", [
    ("other", {}, "unknown dataset"),
    ("corpus", {"shuffle": "sideways"}, "unknown shuffle mode"),
    ("corpus", {"rank": 4, "world_size": 4}, "below the world size"),
])  # fmt: skip
def test_the_published_client_reads_why_it_was_refused(published, served, url, options, why):
    got = published.get(f"shuflr://127.0.0.1:{served[0]}/{url}", **options)
    assert got["error"].startswith("OSError") and why in got["error"]


@pytest.mark.parametrize("options", [{}, {"rank": 0, "world_size": 1}, {"shuffle": "none"}], ids=json.dumps)
def test_a_dataset_that_changes_is_an_error_for_the_published_client_too(published, tmp_path, options):
    """It takes a connection that merely ends for the end of the stream: it has to be told, or reset."""
    path = write_corpus(tmp_path / "corpus.jsonl.zst", [os.urandom(1000).hex().encode() + b"\n"] * 9000, 1 << 20)
    edge = WireEdge(Catalog([("corpus", path)], count=False), Memory())
    listener = socket.create_server(("127.0.0.1", 0))
    edge.serve(listener)
    plan = edge.catalog["corpus"]
    checks = iter(range(12))
    honest = plan.check

    def cut_after_a_while():
        if next(checks, None) is None:
            os.truncate(path, 1000)
        honest()

    plan.check = cut_after_a_while
    got = published.get(f"shuflr://127.0.0.1:{listener.getsockname()[1]}/corpus", epochs=50, **options)
    edge.drain(10.0)
    assert got["error"].startswith("OSError")
