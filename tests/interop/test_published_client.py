"""The published client wheel, unchanged, against our server: the records that the order itself gives, on every
transport that it speaks."""

import hashlib
import itertools
import json
import os
import socket
import subprocess
from pathlib import Path

import peers
import pytest
import trustme

from shuflr.order import Options, open_order
from shuflr.order.position import Position
from shuflr.records.sieve import Partition
from shuflr.server.auth import Tokens
from shuflr.server.catalog import Catalog
from shuflr.server.http_edge import HttpEdge
from shuflr.server.memory import Memory
from shuflr.server.tls import Certificates
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


class Served:
    """One corpus on every transport, for anybody and (`bearer`) for who has a token. `ca` is whom to trust."""

    def __init__(self, folder):
        records = [*lines(3000, seed=2), b"\n", b"with a carriage return\r\n", b"\n"]
        self.path = write_corpus(folder / "corpus.jsonl.zst", records, frame_size=4096)
        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        chain, key, self.ca = folder / "chain.pem", folder / "key.pem", str(folder / "ca.pem")
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        authority.cert_pem.write_to_path(self.ca)
        (folder / "tokens").write_text("alpha\n")
        tokens, tls = Tokens(folder / "tokens"), Certificates(str(chain), str(key)).context()
        catalog, memory = Catalog([("corpus", self.path)]), Memory()
        self._edges, self._urls = [], {}
        for kind, edge in {
            "shuflr": WireEdge(catalog, memory),
            "http": HttpEdge(catalog, memory),
            "https": HttpEdge(catalog, memory, tls=tls),
            "bearer shuflr": WireEdge(catalog, memory, authenticate=tokens.of_hello),
            "bearer http": HttpEdge(catalog, memory, authenticate=tokens.of_header),
            "bearer https": HttpEdge(catalog, memory, authenticate=tokens.of_header, tls=tls),
        }.items():
            listener = socket.create_server(("127.0.0.1", 0))
            edge.serve(listener)
            self._edges.append(edge)
            self._urls[kind] = f"{kind.split()[-1]}://localhost:{listener.getsockname()[1]}"

    def url(self, transport, dataset="corpus"):
        return f"{self._urls[transport]}/{dataset}"

    def trust(self, transport):
        """The options that a transport needs."""
        return {"tls_ca_cert": self.ca} if transport.endswith("https") else {}

    def close(self):
        for edge in self._edges:
            edge.drain(10.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A corpus with empty records and records that end in CR."""
    started = Served(tmp_path_factory.mktemp("served"))
    yield started
    started.close()


def expected(path, transport, shuffle="chunk-shuffled", seed=0, epochs=1, sample=None, rank=None, world_size=None):
    """What the client has to get. Its own `sample` counts over all epochs. Over HTTP it leaves out empty records, and a
    CR before LF."""
    partition = Partition() if rank is None else Partition.of(rank, world_size)
    order = open_order(path, shuffle, Options(seed=seed, partition=partition))
    found = itertools.chain.from_iterable(
        b"".join(bytes(block.data) for block in order.epoch(Position(epoch))).split(b"\n")[:-1]
        for epoch in range(epochs)
    )
    records = list(itertools.islice(found, sample))
    if transport != "shuflr":
        records = [record[:-1] if record.endswith(b"\r") else record for record in records]
        records = [record for record in records if record]
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
@pytest.mark.parametrize("transport", ["shuflr", "http", "https"])
def test_the_published_client_gets_its_records(published, served, transport, options):
    got = published.get(served.url(transport), **served.trust(transport), **options)
    spoken = "shuflr-wire/1" if transport == "shuflr" else transport
    assert got == {"transport": spoken, **expected(served.path, transport, **options)}


@pytest.mark.parametrize("transport", ["bearer shuflr", "bearer http", "bearer https"])
def test_the_published_client_comes_in_with_its_token_alone(published, served, transport):
    url, trust = served.url(transport), served.trust(transport)
    got = published.get(url, auth_token="alpha", **trust)
    assert got["count"] == expected(served.path, transport.split()[-1])["count"]
    for token in ("beta", None):
        assert published.get(url, auth_token=token, **trust)["error"].startswith("OSError")


@pytest.mark.parametrize("dataset, options, why, status", [
    ("other", {}, "unknown dataset", 404),
    ("corpus", {"shuffle": "sideways"}, "unknown shuffle mode", 400),
    ("corpus", {"rank": 4, "world_size": 4}, "below the world size", 400),
])  # fmt: skip
def test_the_published_client_reads_why_it_was_refused(published, served, dataset, options, why, status):
    got = published.get(served.url("shuflr", dataset), **options)
    assert got["error"].startswith("OSError") and why in got["error"]
    got = published.get(served.url("http", dataset), **options)
    assert got["error"].startswith("OSError") and f"status code {status}" in got["error"]


@pytest.mark.parametrize("scheme, edge_kind", [("shuflr", WireEdge), ("http", HttpEdge)])
@pytest.mark.parametrize("options", [{}, {"rank": 0, "world_size": 1}, {"shuffle": "none"}], ids=json.dumps)
def test_a_dataset_that_changes_is_an_error_for_it_too(published, tmp_path, options, scheme, edge_kind):
    """It takes a connection that merely ends for the end of the stream: it has to be told, or reset."""
    path = write_corpus(tmp_path / "corpus.jsonl.zst", [os.urandom(1000).hex().encode() + b"\n"] * 9000, 1 << 20)
    edge = edge_kind(Catalog([("corpus", path)], count=False), Memory())
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
    got = published.get(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/corpus", epochs=50, **options)
    edge.drain(10.0)
    assert got["error"].startswith("OSError")
