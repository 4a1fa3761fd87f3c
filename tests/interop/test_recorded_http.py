"""Every recorded HTTP exchange of the public server, said again to ours: the same request, the same answer.

Fingerprints are masked, they depend on where a file lies, as is the wording of errors. `deviation` holds where ours is
meant to differ, and why.
"""

import hashlib
import json
import re
import shutil
import socket
from pathlib import Path
from typing import NamedTuple, Optional

import pytest

from shuflr.server.auth import Tokens
from shuflr.server.catalog import Catalog
from shuflr.server.http_edge import HttpEdge
from shuflr.server.memory import Memory
from tests.interop.test_recorded_wire import DATASETS, RECORDED

EXCHANGES = json.loads((RECORDED / "http.json").read_text())
FINGERPRINT = re.compile(rb"blake3:[0-9a-f]{64}")
OURS = ("date", "server", "shuflr-total-records")  # headers that the recordings have not
NEEDS_SEEKABLE = ("chunk-shuffled", "index-perm")


class Deviation(NamedTuple):
    """What ours answers instead: a status, and the error's name or what the body begins with."""

    why: str
    status: int
    says: bytes


def deviation(entry) -> Optional[Deviation]:
    """The deviation that covers a recorded exchange, if any does."""
    target, error = entry["target"], entry.get("error", {})
    if target in ("/", "/metrics") and "auth" not in entry:
        return Deviation("there is a page for people, and one for Prometheus", 200, b"")
    if error.get("_shuflr_error") in ("io", "input"):
        return Deviation("what is known before the stream begins gets a status, not a line in its body", 400,
                         b'{"error":"bad_query"')  # fmt: skip
    if error.get("error") == "internal":
        return Deviation("a mode that no header can hold is an unknown mode like others", 400, b'{"error":"bad_query"')
    if target_is_empty(entry) and entry.get("body_len"):
        return Deviation("an empty seekable file gives nothing; there its seek table is taken for text", 200, b"")
    rank = re.search(r"rank=(\d+)&world_size=(\d+)", target)
    if rank and int(rank[1]) >= int(rank[2]):
        return Deviation("a rank that does not exist is refused, not given everything", 400, b'{"error":"bad_query"')
    if entry.get("raw_request_hex") and entry["status_line"].startswith("HTTP/1.1 400"):
        return Deviation("the HTTP library says what is wrong with a request that is none", 400, b"")
    return None


def target_is_empty(entry):
    return entry["target"].startswith("/v1/streams/empty")


class Answer(NamedTuple):
    status_line: str
    headers: "list[str]"
    body: bytes
    clean_end: bool
    trailer: bytes


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """Servers of the recorded datasets by their recorded `auth`."""
    folder = tmp_path_factory.mktemp("served")
    for path in DATASETS.values():
        shutil.copy(RECORDED / path, folder / Path(path).name)
    catalog = Catalog([(name, str(folder / Path(path).name)) for name, path in DATASETS.items()])
    file = folder / "tokens"
    file.write_text("# comment\n\n alpha-token\nspaced-token \n")
    before = Tokens(file)
    file.write_text("alpha\n")
    after = Tokens(file)
    file.write_text("beta\n")
    after.reload()
    edges = {
        None: HttpEdge(catalog, Memory()),
        "bearer: alpha-token, spaced-token": HttpEdge(catalog, Memory(), authenticate=before.of_header),
        "after SIGHUP: beta": HttpEdge(catalog, Memory(), authenticate=after.of_header),
    }
    found = {}
    for auth, edge in edges.items():
        listener = socket.create_server(("127.0.0.1", 0))
        edge.serve(listener)
        found[auth] = listener.getsockname()[1]
    yield found
    for edge in edges.values():
        assert edge.drain(10.0)
    catalog.close()


def request_of(entry) -> bytes:
    if "raw_request_hex" in entry:
        return bytes.fromhex(entry["raw_request_hex"])
    lines = [f"{entry['method']} {entry['target']} HTTP/1.1", "Host: x", *entry["headers"], "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def exchange(port, request, method) -> Answer:
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(request)
        while piece := client.recv(1 << 16):
            answer += piece
    head, _, rest = bytes(answer).partition(b"\r\n\r\n")
    status_line, *headers = head.decode("latin-1").split("\r\n")
    if "transfer-encoding: chunked" not in headers:
        return Answer(status_line, headers, rest, True, b"")
    body = bytearray()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return Answer(status_line, headers, bytes(body), True, rest)
        body += rest[: int(size, 16)]
        assert rest[int(size, 16) :][:2] == b"\r\n"
        rest = rest[int(size, 16) + 2 :]


def masked(header):
    return FINGERPRINT.sub(b"blake3:", header.encode()).decode()


@pytest.mark.parametrize("entry", EXCHANGES, ids=[
    f"{i}-{entry['method']}-{entry['target'][:60]}" for i, entry in enumerate(EXCHANGES)
])  # fmt: skip
def test_it_answers_like_the_public_server(ports, entry):
    answer = exchange(ports[entry.get("auth")], request_of(entry), entry["method"])
    other = deviation(entry)
    if other is not None:
        assert int(answer.status_line.split()[1]) == other.status, other.why
        assert answer.body.startswith(other.says), other.why
        assert answer.body == b"" or not target_is_empty(entry)
        return
    assert answer.status_line == entry["status_line"]
    names = [header for header in answer.headers if header.partition(":")[0].lower() not in OURS]
    recorded = entry["response_headers"]
    if "error" in entry:  # how long an answer is depends on its wording
        names = [header for header in names if not header.startswith("content-length")]
    assert sorted(map(masked, names)) == sorted(map(masked, recorded))
    if "error" in entry:
        said = json.loads(answer.body)
        assert said.pop("detail") and said == entry["error"]
        return
    if entry["target"] == "/v1/datasets":
        same = lambda body: sorted(item["dataset_id"] for item in json.loads(body))  # noqa: E731
        if "body_hex" in entry:
            assert same(answer.body) == same(bytes.fromhex(entry["body_hex"]))
        assert {item["dataset_id"] for item in json.loads(answer.body)} == set(DATASETS)
    elif b"\nHTTP/1.1" in answer.body:  # two requests at once: two answers, the second with its own date
        serving = b'{"status":"SERVING"}\n'
        assert answer.body.count(serving) == bytes.fromhex(entry["body_hex"]).count(serving) == 2
    elif b"blake3:" in answer.body:
        recorded_body = bytes.fromhex(entry["body_hex"])
        assert FINGERPRINT.sub(b"blake3:", answer.body) == FINGERPRINT.sub(b"blake3:", recorded_body)
    else:
        assert len(answer.body) == entry["body_len"]
        assert hashlib.sha256(answer.body).hexdigest() == entry["body_sha256"]
    if "clean_end" in entry:
        assert answer.clean_end is entry["clean_end"] and answer.trailer.hex() == entry["trailer_hex"]


def test_all_recorded_exchanges_are_held():
    assert len(EXCHANGES) == 390
    assert sum(deviation(entry) is not None for entry in EXCHANGES) < 70
