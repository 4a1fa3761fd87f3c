"""Every recorded exchange of the public server, said again to ours: the same client bytes, the same answer.

Fingerprints are masked: they depend on where a file lies. `deviation` holds where ours is meant to differ, and why.
"""

import hashlib
import json
import shutil
import socket
from pathlib import Path
from typing import NamedTuple, Optional

import pytest

from shuflr import core
from shuflr.server.catalog import Catalog
from shuflr.server.memory import Memory
from shuflr.server.wire_edge import WireEdge
from shuflr.wire import Decoder, EpochBoundary, PlainBatch, RawFrame, ServerHello, StreamClosed, StreamError

RECORDED = Path(__file__).parent.parent / "vectors" / "recorded"
EXCHANGES = json.loads((RECORDED / "wire.json").read_text())
DATASETS = {
    "r20": "seekable/r20.f20.jsonl.zst",
    "mixed": "seekable/mixed.f512.jsonl.zst",
    "edges": "seekable/edges.f32.jsonl.zst",
    "empty": "seekable/empty.jsonl.zst",
    "unaligned": "seekable/r20.f17u.jsonl.zst",
    "nl": "seekable/newlines5.f2.jsonl.zst",
    "plain": "inputs/mixed300.jsonl",
    "r20plain": "inputs/r20.jsonl",
    "gz": "inputs/mixed.gz",
    "one": "inputs/one_nolf.jsonl",
}


class Deviation(NamedTuple):
    """What ours does instead. compare: what still has to be the same."""

    why: str
    compare: str


def deviation(entry) -> Optional[Deviation]:
    """The deviation that covers a recorded exchange, if any does."""
    name, client = entry["name"], bytes.fromhex(entry["client_hex"])
    if b'"shuffle":"bogus"' in client or b'"shuffle":""' in client:
        return Deviation("an unknown shuffle is refused in the hello; there after the stream was promised", "refused")
    if name == "rank 5 of 3":
        return Deviation("a rank that does not exist is refused; there it gets everything", "refused")
    if name == "rank alone":
        return Deviation("half a partition is refused; there it gets everything", "refused")
    if name in ("heartbeat from client", "bad checksum credit"):
        return Deviation("what a client says is answered between two messages; there a second hello cuts the stream"
                         " wherever it is", "starts alike")  # fmt: skip
    if (entry.get("messages") or [{}])[-1].get("kind") == 5:
        return None
    ranked = b'"rank"' in client and b'"rank":null' not in client
    chunk_shuffled = b'"chunk-shuffled"' in client or b'"shuffle"' not in client
    raw = client[14:15] == b"\x07" and chunk_shuffled
    if ranked and raw and b'"unaligned"' in client:
        return Deviation("the same where frames were not cut at records: a fragment is a record, as in every raw frame",
                         "raw")  # fmt: skip
    if ranked and raw:
        return Deviation("a rank's frames travel raw as well: a client that can shuffle them gets the same records",
                         "records")  # fmt: skip
    return None


@pytest.fixture(scope="module")
def edges(tmp_path_factory):
    """Two servers of the recorded datasets: one for anybody, one for bearers of a token. Their ports."""
    folder = tmp_path_factory.mktemp("served")
    for path in DATASETS.values():
        shutil.copy(RECORDED / path, folder / Path(path).name)
    catalog = Catalog([(name, str(folder / Path(path).name)) for name, path in DATASETS.items()])

    def bearer(token):
        given = token.decode("utf-8", "replace").strip()
        return None if given == "alpha-token" else "Mismatch" if given else "Malformed"

    started = []
    for options in ({}, {"authenticate": bearer}):
        listener = socket.create_server(("127.0.0.1", 0))
        edge = WireEdge(catalog, Memory(), **options)
        edge.serve(listener)
        started.append((edge, listener.getsockname()[1]))
    yield [port for _, port in started]
    for edge, _ in started:
        assert edge.drain(10.0)
    catalog.close()


def exchange(port, entry):
    """What the server answers, to the end of the connection."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(bytes.fromhex(entry["client_hex"]))
        if entry["half_close"]:
            client.shutdown(socket.SHUT_WR)
        while piece := client.recv(1 << 16):
            answer += piece
    return bytes(answer)


def records_of(messages):
    """Every record followed by LF, raw frames shuffled with their key."""
    work, out = core.Work(), []
    for message in messages:
        if isinstance(message, PlainBatch):
            out += message.unpacked()
        elif isinstance(message, RawFrame):
            work.decode(message.data)
            work.split(message.key)
            block = bytes(work.gather(prefix=True))
            out += PlainBatch(0, 0, work.records, block).unpacked()
    return b"".join(record + b"\n" for record in out), len(out)


def summary(message):
    """A message as the recordings describe it."""
    if isinstance(message, RawFrame):
        return {"kind": 1, "payload_len": 36 + len(message.data), "frame_id": message.frame,
                "key": message.key.hex(), "zlen": len(message.data)}  # fmt: skip
    if isinstance(message, EpochBoundary):
        return {"kind": 4, "payload_len": 12, "epoch": message.epoch, "records": message.records}
    if isinstance(message, StreamClosed):
        return {"kind": 6, "payload_len": 12, "total": message.records, "epochs": message.epochs}
    return {"kind": message.kind}


def decoded(answer):
    decoder = Decoder(ServerHello)
    decoder.feed(answer)
    messages = []
    while (message := decoder.next()) is not None:
        messages.append(message)
    assert decoder.pending == 0
    return messages


@pytest.mark.parametrize("entry", EXCHANGES, ids=lambda entry: entry["name"] or "-")
def test_our_server_answers_as_recorded(edges, entry):
    answer = exchange(edges[entry["name"].startswith("bearer server")], entry)
    differs, known = deviation(entry), entry.get("messages") or []
    if not known:
        assert answer == b""
        return
    messages = decoded(answer)
    hello = messages[0]
    if differs is not None and differs.compare == "refused":
        assert (len(messages), hello.status) == (1, 1) and hello.opened
        return
    assert (hello.status, hello.version, hello.max_message, hello.credit) == (
        known[0]["status"], known[0]["version"], known[0]["max"], known[0]["credit"],
    )  # fmt: skip
    if hello.status:
        assert len(messages) == 1 and hello.opened
        return
    opened = json.loads(hello.opened)
    assert opened.pop("fingerprint").startswith("blake3:")
    assert opened.items() >= {k: v for k, v in known[0]["opened"].items() if k != "fingerprint"}.items()
    if known[-1]["kind"] == 5 and differs is None:
        assert hello.mode == known[0]["mode"]
        assert isinstance(messages[1], StreamError) and len(messages) == 2
        assert (messages[1].code, messages[1].fatal) == (known[-1]["code"], bool(known[-1]["fatal"]))
        return
    if differs is not None and differs.compare == "starts alike":
        assert isinstance(messages[-1], (StreamError, StreamClosed))
        assert [message.kind for message in messages[1:3]] == [3, 4]
        return
    found, count = records_of(messages)
    if differs is not None and differs.compare == "raw":
        assert hello.mode == 1 and messages[-1].records == count >= entry["records"]
        return
    assert (count, hashlib.sha256(found).hexdigest()) == (entry["records"], entry["records_sha256"])
    if differs is not None:
        assert hello.mode == 1 and [summary(m) for m in messages[-1:]] == known[-1:]
        return
    assert hello.mode == known[0]["mode"]
    first = len(answer) - sum(len(_encoded(message)) for message in messages[1:])
    assert hashlib.sha256(answer[first:]).hexdigest() == entry["after_hello_sha256"]


def _encoded(message):
    from shuflr.wire import encode

    return encode(message)


def test_summaries_of_recorded_messages_are_ours(edges):
    """The recordings' own description of raw frames, ends and counts, message by message."""
    entry = next(e for e in EXCHANGES if e["name"] == "r20 {} caps 7")
    messages = decoded(exchange(edges[0], entry))
    assert [summary(message) for message in messages[1:]] == entry["messages"][1:]
