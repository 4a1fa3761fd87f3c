"""What a server's processes do, gathered: for its page and its metrics.

Each process tells its own state as JSON on a socket in a folder that only the server's user can open; whoever is asked
for the page or the metrics asks all. A process that does not answer in time is left out.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Optional

from shuflr.server.catalog import Catalog
from shuflr.server.live import Live, Totals

log = logging.getLogger("shuflr")

_PATIENCE = 2.0  # seconds
_SUFFIX = ".sock"

# What the totals of a dataset are called, and what they are.
_COUNTERS = {
    "streams": "Streams that were opened.",
    "records": "Records sent.",
    "bytes": "Bytes sent, before TLS and framing.",
    "dropped": "Records beyond 16 MiB that were left out.",
    "errors": "Streams that broke off for a reason other than their client's leaving.",
    "blocked_on_client": "Seconds in which streams waited for their clients to take bytes.",
    "blocked_on_memory": "Seconds in which streams waited for a share of the server's memory.",
}
_SECONDS = ("blocked_on_client", "blocked_on_memory")


def described(live: Live, catalog: Catalog) -> "dict[str, Any]":
    """The state of this process."""
    now = time.time()
    return {
        "pid": os.getpid(),
        "totals": [[*key, vars(totals)] for key, totals in live.totals().items()],
        "read_seconds": {dataset.id: dataset.read_seconds for dataset in catalog},
        "streams": [
            {
                "number": each.number, "dataset": each.dataset, "transport": each.transport, "peer": each.peer,
                "shuffle": each.stream.plan.request.shuffle, "epoch": each.stream.epochs,
                "records": each.stream.records, "bytes": each.stream.bytes, "seconds": max(now - each.began, 1e-3),
                "blocked_on_client": each.blocked_on_client, "total_records": each.total_records,
            }
            for each in live.streams()
        ],
    }  # fmt: skip


class Status:
    """The processes of a server.

    folder: where they tell each other how they are; None for a server of one process."""

    def __init__(self, live: Live, catalog: Catalog, folder: Optional[str] = None) -> None:
        self._live = live
        self._catalog = catalog
        self._folder = folder
        self._listener: Optional[socket.socket] = None
        if folder is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(os.path.join(folder, f"{os.getpid()}{_SUFFIX}"))
            self._listener.listen(16)
            threading.Thread(target=self._tell, args=(self._listener,), name="shuflr-status", daemon=True).start()

    def _tell(self, listener: socket.socket) -> None:
        while True:
            try:
                asker, _ = listener.accept()
            except OSError:
                return
            with asker:
                try:
                    asker.settimeout(_PATIENCE)
                    asker.sendall(json.dumps(described(self._live, self._catalog)).encode())
                except OSError as error:
                    log.debug("a process did not take the status: %s", error)

    def processes(self) -> "list[dict[str, Any]]":
        """The states of all processes that answer, this one's first."""
        return [described(self._live, self._catalog), *self._others()]

    def _others(self) -> "Iterator[dict[str, Any]]":
        if self._folder is None:
            return
        mine = f"{os.getpid()}{_SUFFIX}"
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(_SUFFIX) and name != mine:
                try:
                    yield json.loads(_asked(os.path.join(self._folder, name)))
                except (OSError, ValueError) as error:
                    log.debug("a process does not tell its status: %s", error)

    def metrics(self) -> bytes:
        """All of it as Prometheus reads it."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_Metrics(self.processes()))
        return generate_latest(registry)


def _asked(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_PATIENCE)
        asking.connect(path)
        data = b""
        while piece := asking.recv(1 << 16):
            data += piece
        return data


class _Metrics:
    """The states of processes as metric families, those of the same dataset and transport added up."""

    def __init__(self, processes: "list[dict[str, Any]]") -> None:
        self._processes = processes

    def _totals(self) -> "dict[tuple[str, str], Totals]":
        found: dict[tuple[str, str], Totals] = {}
        for process in self._processes:
            for dataset, transport, values in process["totals"]:
                totals = found.setdefault((dataset, transport), Totals())
                for name, value in values.items():
                    setattr(totals, name, getattr(totals, name) + value)
        return found

    def collect(self) -> "Iterator[Any]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        totals = self._totals()
        for name, text in _COUNTERS.items():
            unit = "_seconds" if name in _SECONDS else ""
            counter = CounterMetricFamily(f"shuflr_{name}{unit}", text, labels=("dataset", "transport"))
            for key, values in totals.items():
                counter.add_metric(key, getattr(values, name))
            yield counter
        disk = CounterMetricFamily(
            "shuflr_blocked_on_disk_seconds", "Seconds spent reading frames to decode them.", labels=("dataset",)
        )
        for dataset in sorted({name for process in self._processes for name in process["read_seconds"]}):
            seconds = sum(process["read_seconds"].get(dataset, 0.0) for process in self._processes)
            disk.add_metric((dataset,), seconds)
        yield disk
        active = GaugeMetricFamily("shuflr_active_streams", "Streams that run now.", labels=("dataset", "transport"))
        for key, values in totals.items():
            active.add_metric(key, values.active)
        yield active
        yield GaugeMetricFamily("shuflr_processes", "Processes that serve.", value=len(self._processes))
        yield from self._streams()

    def _streams(self) -> "Iterator[Any]":
        from prometheus_client.core import GaugeMetricFamily

        labels = ("dataset", "transport", "stream", "peer")
        for name, text in (
            ("records", "Records of a running stream that are out, those that were skipped among them."),
            ("bytes", "Bytes of a running stream that are out."),
            ("epoch", "The epoch that a running stream is in."),
            ("blocked_on_client", "Seconds in which a running stream waited for its client."),
        ):
            unit = "_seconds" if name in _SECONDS else ""
            gauge = GaugeMetricFamily(f"shuflr_stream_{name}{unit}", text, labels=labels)
            for process in self._processes:
                for stream in process["streams"]:
                    number = f"{process['pid']}-{stream['number']}"
                    gauge.add_metric((stream["dataset"], stream["transport"], number, stream["peer"]), stream[name])
            yield gauge
