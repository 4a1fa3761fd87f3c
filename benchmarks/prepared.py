"""A server that only pushes bytes made before its first connection, so that clients are measured and no server.

    python benchmarks/prepared.py 200 1024 8192

Serves for each record size S the datasets `raw-S` (RawFrame) and `plain-S` (PlainBatch of 64) over shuflr-wire/1 and
`http-S` over HTTP. An epoch is the same 20 MB of records every time; `epochs` repeats it. Prints one line of JSON, with
both addresses and the records of an epoch by dataset, and serves until its standard input ends.
"""

import argparse
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from corpus import sentences

from shuflr.order.seeds import frame_key
from shuflr.records.writer import write_seekable
from shuflr.wire import (
    ClientHello,
    Decoder,
    EpochBoundary,
    OpenStream,
    PlainBatch,
    RawFrame,
    ServerHello,
    StreamClosed,
    StreamOpened,
    encode,
)

BATCH = 64  # records: what the published client asks for
CHUNK = 2 << 20  # bytes of an HTTP chunk, as the public server sends them
FINGERPRINT = "blake3:" + 64 * "0"
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"shuflr-fingerprint: " + FINGERPRINT.encode() + b"\r\nshuflr-effective-seed: 0\r\n\r\n"
)


class Prepared(NamedTuple):
    """An epoch: how many records and content bytes it has, and what is sent for it."""

    records: int
    content: int
    data: bytes


def raw_frames(lines: "list[bytes]") -> bytes:
    """The messages of an epoch of stored frames."""
    out = io.BytesIO()
    table = write_seekable(io.BytesIO(b"".join(lines)), out)
    stored, at, messages = out.getvalue(), 0, []
    for number, (length, _, _) in enumerate(table):
        messages.append(encode(RawFrame(number, frame_key(0, 0, number), stored[at : at + length])))
        at += length
    return b"".join(messages)


def plain_batches(lines: "list[bytes]") -> bytes:
    """The messages of an epoch of batches."""
    bare = [line[:-1] for line in lines]
    starts = range(0, len(bare), BATCH)
    return b"".join(encode(PlainBatch.of(at // BATCH, 0, bare[at : at + BATCH])) for at in starts)


def chunks(lines: "list[bytes]") -> bytes:
    """The chunks of an epoch of a response's body."""
    body = b"".join(lines)
    pieces = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def prepare(sizes: "list[int]", megabytes: int) -> "dict[str, Prepared]":
    """Every dataset by name."""
    made = {}
    for size in sizes:
        lines = sentences(size, megabytes * 10**6)
        content = sum(map(len, lines))
        for form, of in {"raw": raw_frames, "plain": plain_batches, "http": chunks}.items():
            made[f"{form}-{size}"] = Prepared(len(lines), content, of(lines))
    return made


def serve_wire(connection: socket.socket, datasets: "dict[str, Prepared]") -> None:
    decoder = Decoder(ClientHello)
    while (hello := decoder.next()) is None:
        decoder.feed(connection.recv(65536) or b"\xff")
    assert isinstance(hello, ClientHello)
    wanted = OpenStream.parse(hello.open)
    epochs = 1 if wanted.epochs is None else wanted.epochs
    dataset = datasets[wanted.dataset_id]
    opened = StreamOpened(wanted.dataset_id, FINGERPRINT, wanted.seed, wanted.shuffle, BATCH)
    connection.sendall(encode(ServerHello(opened.encode(), mode=1 if wanted.dataset_id.startswith("raw") else 3)))
    for epoch in range(epochs):
        connection.sendall(dataset.data)
        connection.sendall(encode(EpochBoundary(epoch, dataset.records)))
    connection.sendall(encode(StreamClosed(epochs * dataset.records, epochs)))


def serve_http(connection: socket.socket, datasets: "dict[str, Prepared]") -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(65536)
    target = urlsplit(request.split(b" ")[1].decode())
    epochs = int(parse_qs(target.query).get("epochs", ["1"])[0])
    connection.sendall(RESPONSE)
    for _ in range(epochs):
        connection.sendall(datasets[target.path.rpartition("/")[2]].data)
    connection.sendall(b"0\r\n\r\n")


def accept(listener: socket.socket, serve: Any, datasets: "dict[str, Prepared]") -> None:
    def run(connection: socket.socket) -> None:
        with connection:
            try:
                serve(connection, datasets)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a close with unread bytes would cut what is still on its way
                    pass
            except ConnectionError:
                pass

    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=run, args=(connection,), daemon=True).start()


@contextmanager
def running(sizes: "list[int]", megabytes: int) -> "Iterator[dict[str, Any]]":
    """The server as a process of its own; what it said when it was ready."""
    command = [sys.executable, str(Path(__file__).resolve()), "--megabytes", str(megabytes), *map(str, sizes)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--megabytes", type=int, default=20, help="of an epoch")
    options = parser.parse_args()
    datasets = prepare(options.sizes, options.megabytes)
    ready: dict[str, Any] = {name: made._asdict() for name, made in datasets.items()}
    for made in ready.values():
        made["sent"] = len(made.pop("data"))
    for name, serve in {"wire": serve_wire, "http": serve_http}.items():
        listener = socket.create_server(("127.0.0.1", 0))
        ready[name] = f"127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=accept, args=(listener, serve, datasets), daemon=True).start()
    print(json.dumps(ready), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
