"""Which HTTP library holds a thousand streams: ours, where cheroot only reads the requests, beside cheroot's and
gunicorn's own threaded servers with the same streams behind a WSGI application.

    pip install gunicorn; python benchmarks/http_libraries.py

One client process drains all streams. `first` is when the last of them had given something. The threads of the other
two are as many as there are streams, because a stream keeps its thread for as long as it runs.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from corpus import SHUFLR, corpus, timed
from server_rates import Drained, client

KINDS = ("ours", "cheroot", "gunicorn")
_PIECE = 1 << 18  # what a WSGI application gives at a time: memory that 1,000 paused clients hold


def application(path: str) -> "Callable[..., Iterator[bytes]]":
    """The streams of a corpus behind WSGI."""
    from shuflr.server.catalog import Catalog
    from shuflr.server.memory import Memory
    from shuflr.server.query import parse_query
    from shuflr.server.streaming import DecodedStream, Lines, Plan

    catalog, memory = Catalog([("corpus", path)]), Memory()

    def pieces(stream: DecodedStream) -> Iterator[bytes]:
        while piece := stream.take(_PIECE):
            yield piece

    def answer(environ: "dict[str, Any]", start_response: "Callable[..., Any]") -> Iterator[bytes]:
        plan = Plan(catalog, parse_query("corpus", environ["QUERY_STRING"].encode()))
        start_response("200 OK", [("content-type", "application/x-ndjson; charset=utf-8")])
        return pieces(DecodedStream(plan, memory, Lines()))

    return answer


def serve_ours(path: str, streams: int) -> None:
    import os
    import socket

    from shuflr.server.catalog import Catalog
    from shuflr.server.http_edge import HttpEdge
    from shuflr.server.memory import Memory

    edge = HttpEdge(Catalog([("corpus", path)]), Memory())
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    edge.serve(listener)
    print(listener.getsockname()[1], os.getpid(), flush=True)
    sys.stdin.read()
    edge.drain(1.0)


def serve_cheroot(path: str, streams: int) -> None:
    import os
    import threading

    from cheroot.wsgi import Server

    server = Server(("127.0.0.1", 0), application(path), numthreads=streams, max=streams, request_queue_size=1024)
    server.prepare()
    print(server.bind_addr[1], os.getpid(), flush=True)
    threading.Thread(target=server.serve, daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # its threads are in the middle of endless streams


def serve_gunicorn(path: str, streams: int) -> None:
    import os

    from gunicorn.app.base import BaseApplication

    def ready(worker: Any) -> None:
        print(worker.sockets[0].getsockname()[1], os.getpid(), flush=True)

    class Application(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in {
                "bind": "127.0.0.1:0", "worker_class": "gthread", "threads": streams,
                "worker_connections": 2 * streams, "post_worker_init": ready, "loglevel": "critical",
                "graceful_timeout": 1, "backlog": 1024, "control_socket_disable": True,
            }.items():  # fmt: skip
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> Any:
            return application(path)

    Application().run()


SERVERS = {"ours": serve_ours, "cheroot": serve_cheroot, "gunicorn": serve_gunicorn}


def measure(kind: str, path: Path, streams: int, seconds: float) -> Drained:
    """What a library's server gives to so many streams."""
    command = [sys.executable, __file__, "--serve", kind, str(path), "--streams", str(streams)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, pid = process.stdout.readline().split()
        return Drained(*client("drain", port, "http", streams, seconds, 3.0, pid))  # type: ignore[arg-type]
    finally:
        if kind == "gunicorn":
            process.terminate()
        process.communicate("", timeout=60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--data", type=Path, help="a corpus to use instead of a made one")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve[0]](options.serve[1], options.streams)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.data or Path(folder) / "corpus.zst"
        if not path.exists():
            timed([*SHUFLR, "convert", str(corpus(Path(folder), 1024, options.megabytes)), "-o", str(path)])
        print(f"{options.streams} streams of 1 KiB records\n")
        print(f"{'library':<9} {'MB/s':>6} {'MB/CPU s':>9} {'slowest':>8} {'first':>8} {'peak':>9} {'errors':>7}")
        for kind in KINDS:
            got = measure(kind, path, options.streams, options.seconds)
            print(f"{kind:<9} {got.megabytes / got.seconds:>6.0f} {got.megabytes / got.cpu:>9.0f} {got.slowest:>8.2f}"
                  f" {got.first:>7.2f}s {got.peak:>5.0f} MiB {got.errors:>7}", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
