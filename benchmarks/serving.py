"""Our server as a process of its own, for the benchmarks that measure a client against it."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corpus import SHUFLR


class Server:
    """A running `shuflr serve`. addresses: host:port by transport, "wire" and "http"."""

    def __init__(self, process: "subprocess.Popen[str]", addresses: "dict[str, str]") -> None:
        self.process = process
        self.addresses = addresses

    def url(self, transport: str, dataset: str) -> str:
        """Where a dataset is served."""
        scheme, folder = ("shuflr", "") if transport == "wire" else ("http", "v1/streams/")
        return f"{scheme}://{self.addresses[transport]}/{folder}{dataset}"

    def processes(self) -> "list[int]":
        """The ids of the server and its workers."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found


@contextmanager
def serving(datasets: "dict[str, Path]", *options: str) -> Iterator[Server]:
    """Serves the files by id on ports of its own while the block runs."""
    command = [*SHUFLR, "serve", "--http", "127.0.0.1:0", "--wire", "127.0.0.1:0", "--log-format", "json", *options]
    for name, path in datasets.items():
        command += ["--dataset", f"{name}={path}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    addresses: dict[str, str] = {}
    try:
        while len(addresses) < 2:
            entry = json.loads(process.stderr.readline() or '{"message": ""}')
            if process.poll() is not None:
                raise RuntimeError(f"shuflr serve ended with {process.returncode}")
            for transport in ("http", "wire"):
                if entry["message"] == f"serve({transport}) bound":
                    addresses[transport] = entry["addr"]
        reader = threading.Thread(target=process.stderr.read)  # so that the server never waits to say something
        reader.start()
        yield Server(process, addresses)
    finally:
        process.terminate()
        process.wait()
