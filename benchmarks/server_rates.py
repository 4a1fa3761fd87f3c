"""What a server process gives per processor second, how fairly, and in how much memory, from 1 to 1,000 streams.

    python benchmarks/server_rates.py

One client process drains all streams and does nothing with them. A rate is MB on the wire per processor second of
the server, in units of what `zstd -dc` decodes of the same file in a second (`its CPU`: in a second of its processor
time), measured beside it; `public` is what the public server reaches by the first. Exits 1 when a floor is not kept.
"""

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Optional

from corpus import SHUFLR, corpus, timed

TICK = os.sysconf("SC_CLK_TCK")
KINDS = ("raw", "plain", "http")


class Drained(NamedTuple):
    """What one client process got from a server."""

    streams: "list[int]"  # bytes of each
    seconds: float
    cpu: float  # of the server
    peak: float  # of the server, MiB
    first: float  # seconds until each stream had given something
    errors: int

    @property
    def megabytes(self) -> float:
        return sum(self.streams) / 1e6

    @property
    def slowest(self) -> float:
        """The slowest stream by the median one."""
        return min(self.streams) / max(statistics.median(self.streams), 1)


def serve(path: str) -> None:
    """The server process: prints its ports, and serves until its standard input ends."""
    from shuflr.server.catalog import Catalog
    from shuflr.server.http_edge import HttpEdge
    from shuflr.server.memory import Memory
    from shuflr.server.wire_edge import WireEdge

    catalog, memory, ports = Catalog([("corpus", path)]), Memory(), []
    edges = [WireEdge(catalog, memory), HttpEdge(catalog, memory)]
    for edge in edges:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        edge.serve(listener)
        ports.append(listener.getsockname()[1])
    print(*ports, flush=True)
    sys.stdin.read()
    for edge in edges:
        edge.drain(5.0)


def request(kind: str, seed: int) -> bytes:
    """The first bytes of a client."""
    from shuflr.wire import ClientHello, OpenStream, encode

    if kind == "http":
        return f"GET /v1/streams/corpus?seed={seed}&epochs=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    opened = OpenStream("corpus", seed=seed, epochs=0, max_batch_records=64).encode()
    return encode(ClientHello(opened, capabilities=7 if kind == "raw" else 6))


def drain(port: int, kind: str, count: int, seconds: float, warm: float, pid: int) -> Drained:
    """Opens `count` streams and reads them for a while; what the first `warm` seconds gave is not counted."""
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    got: dict[int, int] = {}
    began = time.monotonic()
    for seed in range(count):
        sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        sock.sendall(request(kind, seed))
        sock.setblocking(False)
        sockets[sock.fileno()], got[sock.fileno()] = sock, 0
        poll.register(sock, select.EPOLLIN)
    scratch = bytearray(1 << 20)
    errors, missing, first = 0, set(got), 0.0
    start, before, base = 0.0, dict(got), 0.0
    end = time.monotonic() + warm + seconds
    while (now := time.monotonic()) < end or missing:
        if now > end + 60:
            break
        if not start and (now > end - seconds):
            start, before, base = now, dict(got), cpu_seconds(pid)
        for fd, _ in poll.poll(0.5):
            try:
                n = sockets[fd].recv_into(scratch)
            except OSError:
                n = 0
            if n == 0:
                errors += 1
                poll.unregister(fd)
                missing.discard(fd)
                continue
            got[fd] += n
            if fd in missing and got[fd] > 4096:
                missing.discard(fd)
                first = time.monotonic() - began
    used, took = cpu_seconds(pid) - base, time.monotonic() - start
    for sock in sockets.values():
        sock.close()
    return Drained([got[fd] - before[fd] for fd in got], took, used, peak(pid), first, errors + len(missing))


def pause(port: int, count: int, pid: int) -> float:
    """How much memory of the server a raw stream costs whose client reads nothing, in KiB."""
    before, sockets = 0.0, []
    for seed in range(-8, count):  # the first few pay for what all share
        if seed == 0:
            time.sleep(0.5)
            before = resident(pid)
        sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        sock.sendall(request("raw", seed + 8))
        sock.recv(1)
        sockets.append(sock)
    time.sleep(3)
    cost = (resident(pid) - before) * 1024 / count
    for sock in sockets:
        sock.close()
    return cost


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _status(pid: int, name: str) -> float:
    """A line of /proc/pid/status, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def resident(pid: int) -> float:
    return _status(pid, "VmRSS")


def peak(pid: int) -> float:
    return _status(pid, "VmHWM")


class Served:
    """A server process over one file."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.wire, self.http = map(int, self._process.stdout.readline().split())

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate("", timeout=60)


def client(*arguments: object) -> "list[object]":
    """Runs drain or pause in a process of its own."""
    command = [sys.executable, __file__, "--client", *map(str, arguments)]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def drained(served: Served, kind: str, count: int, seconds: float, warm: float) -> Drained:
    port = served.http if kind == "http" else served.wire
    return Drained(*client("drain", port, kind, count, seconds, warm, served.pid))  # type: ignore[arg-type]


class Row(NamedTuple):
    """A load: the kind of stream, the size of its records, how many streams, and its floors."""

    kind: str
    record: int
    streams: int
    floor: Optional[float]  # MB per processor second, by `zstd -dc`
    public: str = ""
    seconds: float = 6.0
    peak: Optional[float] = None  # MiB
    slowest: Optional[float] = None


def rows(record: int, minute: float) -> "list[Row]":
    """The loads on a corpus of records of a size."""
    plain, http = {200: (0.8, None), 1024: (0.9, 1.0)}[record]
    plain_public, http_public = {200: ("0.22", ""), 1024: ("0.41", "0.81")}[record]
    table = [Row("raw", record, 1, 2.5, "0.16"), Row("raw", record, 16, 2.5)]
    table += [Row("plain", record, 1, plain, plain_public), Row("plain", record, 16, plain)]
    table += [Row("http", record, 1, http, http_public), Row("http", record, 16, http)]
    if record == 1024:
        for count in (156, 300):
            table += [Row(kind, record, count, 2.5 if kind == "raw" else None, slowest=0.25) for kind in KINDS]
        table += [Row(kind, record, 1000, None, "killed", minute, 1024, 0.1) for kind in KINDS]
    return table


def zstd_rates(path: Path) -> "tuple[float, float]":
    """What `zstd -dc` decodes in a second, and in a second of its processors, in MB: medians of five."""
    said = subprocess.run([*SHUFLR, "info", "--json", str(path)], check=True, capture_output=True).stdout
    size = int(json.loads(said)["decompressed_bytes"])
    runs = [timed(["zstd", "-dc", str(path)]) for _ in range(5)]
    wall, cpu = (statistics.median(times) for times in zip(*((run.wall, run.cpu) for run in runs)))
    return size / wall / 1e6, size / cpu / 1e6


def measure(path: Path, record: int, options: argparse.Namespace) -> bool:
    """Prints a table for one corpus; whether every floor was kept."""
    kept, (yardstick, by_cpu), http = True, zstd_rates(path), {}
    print(f"\n{record} B records; zstd -dc: {yardstick:.0f} MB/s, {by_cpu:.0f} MB a processor second")
    print(f"{'streams':>8} {'kind':<6} {'MB/s':>6} {'MB/CPU s':>9} {'by zstd':>8} {'its CPU':>8} {'floor':>6}"
          f" {'public':>7} {'slowest':>8} {'first':>7} {'peak':>9} {'errors':>7}")  # fmt: skip
    for row in rows(record, options.minute):
        if row.streams > options.most:
            continue
        with Served(path) as served:
            got = drained(served, row.kind, row.streams, min(row.seconds, options.seconds or row.seconds), options.warm)
        rate = got.megabytes / got.cpu
        ratio = rate / yardstick
        floor = row.floor if row.floor is None or not options.short else row.floor / 2
        short = (
            (floor is not None and ratio < floor)
            or (row.peak is not None and got.peak > row.peak)
            or (row.slowest is not None and got.slowest < row.slowest)
            or got.errors > 0
        )
        if row.kind == "http":
            http[row.streams] = got.megabytes / got.seconds
        kept = kept and not short
        print(f"{row.streams:>8} {row.kind:<6} {got.megabytes / got.seconds:>6.0f} {rate:>9.0f} {ratio:>8.2f}"
              f" {rate / by_cpu:>8.2f}"
              f" {floor or '':>6} {row.public:>7} {got.slowest:>8.2f} {got.first:>6.2f}s {got.peak:>5.0f} MiB"
              f" {got.errors:>7}{'  short' if short else ''}", flush=True)  # fmt: skip
    if 156 in http:
        share = http[156] / http[16]
        print(f"156 HTTP streams give {share:.2f} of what 16 give, at least 0.9")
        kept = kept and share >= 0.9
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="seconds on a small corpus, and half of each floor")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--seconds", type=float, help="of each load but the longest")
    parser.add_argument("--minute", type=float, default=60.0, help="seconds of the longest loads")
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=1000, help="leave out loads of more streams")
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 1024])
    parser.add_argument("--data", type=Path, help="a folder that holds or gets the corpora (default: a temporary one)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    if options.client:
        name, *rest = options.client
        if name == "drain":
            port, kind, count, seconds, warm, pid = rest
            print(json.dumps(drain(int(port), kind, int(count), float(seconds), float(warm), int(pid))))
        else:
            print(json.dumps([pause(*map(int, rest))]))
        return 0
    if options.short:
        options.megabytes, options.seconds, options.warm, options.most, options.sizes = 20, 0.5, 0.2, 16, [1024]
    kept = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        for size in options.sizes:
            packed = folder / f"{size}.zst"
            if not packed.exists():
                timed([*SHUFLR, "convert", str(corpus(folder, size, options.megabytes)), "-o", str(packed)])
            kept = measure(packed, size, options) and kept
        with Served(packed) as served:
            count = 200 if options.short else 1000
            cost = float(client("pause", served.wire, count, served.pid)[0])  # type: ignore[arg-type]
        print(f"\n{count} paused raw streams: {cost:.0f} KiB each, at most 300")
        kept = kept and cost <= 300
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
