"""What a row costs: `pump` beside a bare pool of `http.client` threads and the public asyncio client, in one run.

    python benchmarks/client.py            windows of 16, 64 and 256, no latency and 50 ms; then memory; some minutes
    python benchmarks/client.py --short    a second of each at 64, a loose verdict on CPU, none on rows/s; for the suite
    python benchmarks/client.py --only 64  only the windows of 64 (repeatable), without the part on memory

Each number is the median of several rounds, in which every party runs once, in a process of its own, against the same
`saturate simulate`. The bare pool encodes and decodes JSON and drops what it gets; the other two land parquet. rows/s
is from the call to its return. CPU is that of the process and of its children (the writer), from the call on, for
1,000 rows. Memory is the peak of each process, added up. Required of `pump` at 64 and 50 ms: at most 2.2 times the
bare pool's CPU a row and at least 0.97 of its rows/s; at 256 no more CPU a row than at 64; and memory that does not
grow from 10,000 rows to 200,000, nor from 10,000 to 20,000 of 100 KB each.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, NamedTuple
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
WINDOWS = (16, 64, 256)
LATENCIES_S = (0.0, 0.05)
JUDGED = (64, 0.05)
TIMES_BARE_CPU = 2.2
# In a second, a writer's start is most of what a row costs.
TIMES_BARE_CPU_SHORT = 5.0
SHARE_OF_BARE_ROWS = 0.97
# A process starts with its libraries; what may grow after the first rows is allocator slack, not rows.
GROWTH_MB = 24.0
NO_DEARER = 1.05
TOKENS = 20
LONG_TOKENS = 20_000


class Measured(NamedTuple):
    rows_s: float
    cpu_ms: float
    rss_mb: float


# --- The parties, each run in a process of its own --------------------------------------------------------------------


def rows_of(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"n": number, "text": f"row {number} " + "some words " * 15}


def request_of(row: dict[str, Any], tokens: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": row["text"]}], "max_tokens": tokens}


def answer_of(body: dict[str, Any]) -> dict[str, Any]:
    return {"answer": body["choices"][0]["message"]["content"]}


def bare(endpoint: str, count: int, window: int, tokens: int, out: str) -> None:
    place = urlsplit(endpoint)
    rows, lock = rows_of(count), threading.Lock()

    def work() -> None:
        connection = http.client.HTTPConnection(str(place.hostname), place.port)
        while True:
            with lock:
                row = next(rows, None)
            if row is None:
                return connection.close()
            body = json.dumps(request_of(row, tokens)).encode()
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            answer_of(json.loads(connection.getresponse().read()))

    threads = [threading.Thread(target=work) for _ in range(window)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pumped(endpoint: str, count: int, window: int, tokens: int, out: str) -> None:
    from saturate import Fixed, pump

    pump(
        ((str(row["n"]), row) for row in rows_of(count)),
        lambda row: request_of(row, tokens),
        lambda row, body: answer_of(body),
        endpoint,
        out,
        window=Fixed(window),
    )


PARTIES: dict[str, Callable[[str, int, int, int, str], None]] = {"bare": bare, "pump": pumped, "public": pumped}


def cpu_s() -> float:
    """Seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure_party(party: str, endpoint: str, count: int, window: int, tokens: int) -> dict[str, float]:
    """What a party's own process says of itself."""
    if party != "bare":
        import saturate  # noqa: F401  (importing is no part of a row)
    with tempfile.TemporaryDirectory(prefix="saturate-client-") as out:
        cpu, began = cpu_s(), time.perf_counter()
        PARTIES[party](endpoint, count, window, tokens, f"{out}/out")
        wall, cpu = time.perf_counter() - began, cpu_s() - cpu
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    rss = sum(peaks) / (1 << 10 if sys.platform == "linux" else 1 << 20)
    return {"rows_s": count / wall, "cpu_ms": 1e3 * cpu / count, "rss_mb": rss}


# --- Running them -----------------------------------------------------------------------------------------------------


@contextmanager
def simulator(latency_s: float) -> Iterator[str]:
    command = [sys.executable, "-m", "saturate.simulate", "--port", "0", "--latency-s", str(latency_s)]
    command += ["--max-num-seqs", "1024", "--parent-pid", str(os.getpid())]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def python_of(party: str) -> str:
    if party != "public":
        return sys.executable
    # The one place that knows how to make the peer's environment.
    sys.path.append(str(HERE.parent / "tests" / "interop"))
    from peers import peer_python  # type: ignore[import-not-found]

    return str(peer_python("saturate"))


def in_a_process(party: str, endpoint: str, count: int, window: int, tokens: int) -> dict[str, float]:
    arguments = [party, endpoint, count, window, tokens]
    command = [python_of(party), str(Path(__file__).resolve()), "--measure", json.dumps(arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{arguments} failed:\n{ran.stderr[-3000:]}")
    answer: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def rows_for(party: str, window: int, latency_s: float, seconds: float) -> int:
    """As many rows as the bare pool does in about that time; the public client gets a quarter."""
    count = int(seconds * min(window / latency_s if latency_s else 4000, 4000))
    return count // 4 if party == "public" else count


def compare(window: int, latency_s: float, rounds: int, seconds: float, parties: list[str]) -> dict[str, Measured]:
    """Print a line for each party; the medians."""
    found: dict[str, list[dict[str, float]]] = {party: [] for party in parties}
    with simulator(latency_s) as endpoint:
        for _ in range(rounds):
            for party in parties:
                count = rows_for(party, window, latency_s, seconds)
                found[party].append(in_a_process(party, endpoint, count, window, TOKENS))
    medians = {
        party: Measured(*(statistics.median(each[name] for each in of_party) for name in Measured._fields))
        for party, of_party in found.items()
    }
    for party, of_party in medians.items():
        of_bare = medians["bare"]
        rows_share, cpu_times = of_party.rows_s / of_bare.rows_s, of_party.cpu_ms / of_bare.cpu_ms
        print(
            f"{window:>6} {latency_s * 1000:>5.0f} ms {party:>7} {of_party.rows_s:>8.0f} {of_party.cpu_ms:>8.3f} "
            f"{of_party.rss_mb:>7.0f} {rows_share:>8.3f} {cpu_times:>6.2f}",
            flush=True,
        )
    return medians


def judge(
    medians: dict[tuple[int, float], dict[str, Measured]],
    times_cpu: float = TIMES_BARE_CPU,
    share_of_rows: float = SHARE_OF_BARE_ROWS,
) -> list[str]:
    """What falls short."""
    short = []
    if JUDGED in medians:
        ours, of_bare = medians[JUDGED]["pump"], medians[JUDGED]["bare"]
        if ours.cpu_ms > times_cpu * of_bare.cpu_ms:
            short.append(f"CPU a row is {ours.cpu_ms / of_bare.cpu_ms:.2f} times the bare pool's")
        if ours.rows_s < share_of_rows * of_bare.rows_s:
            short.append(f"rows/s are {ours.rows_s / of_bare.rows_s:.3f} of the bare pool's")
        wide = medians.get((256, JUDGED[1]))
        if wide is not None and wide["pump"].cpu_ms > NO_DEARER * ours.cpu_ms:
            short.append(f"a row costs {wide['pump'].cpu_ms / ours.cpu_ms:.2f} times as much at 256 as at 64")
    return short


def memory(cases: list[tuple[int, int, int]]) -> list[str]:
    """Print a line for each (rows of a small run, rows of a large one, tokens of an answer); what falls short."""
    print(f"\n{'rows':>17} {'answer':>7} {'MB':>6} {'MB':>6} {'rows/s':>7}")
    short = []
    with simulator(0.0) as endpoint:
        for few, many, tokens in cases:
            small, large = (in_a_process("pump", endpoint, count, 64, tokens) for count in (few, many))
            size = "short" if tokens == TOKENS else "100 KB"
            print(
                f"{f'{few:,} -> {many:,}':>17} {size:>7} {small['rss_mb']:>6.0f} {large['rss_mb']:>6.0f} "
                f"{large['rows_s']:>7.0f}",
                flush=True,
            )
            if large["rss_mb"] > small["rss_mb"] + GROWTH_MB:
                short.append(f"memory grows from {small['rss_mb']:.0f} to {large['rss_mb']:.0f} MB ({size})")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", type=int, action="append", choices=WINDOWS)
    parser.add_argument("--latency", type=float, action="append", help="seconds; only these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="that the bare pool takes for its rows")
    parser.add_argument("--parties", nargs="+", choices=list(PARTIES), default=list(PARTIES))
    parser.add_argument("--memory", action="store_true", help="only the part on memory")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_party(*json.loads(arguments.measure))))
        return 0
    short = []
    if not arguments.memory:
        windows = [64] if arguments.short else arguments.only or list(WINDOWS)
        latencies = arguments.latency or list(LATENCIES_S)
        rounds, seconds = (1, 1.0) if arguments.short else (arguments.rounds, arguments.seconds)
        parties = ["bare", "pump"] if arguments.short else arguments.parties
        print(
            f"{'window':>6} {'latency':>8} {'party':>7} {'rows/s':>8} {'CPU ms':>8} "
            f"{'RSS MB':>7} {'of bare':>8} {'CPU x':>6}"
        )
        medians = {
            (window, latency_s): compare(window, latency_s, rounds, seconds, parties)
            for latency_s in latencies
            for window in windows
        }
        short = judge(medians, TIMES_BARE_CPU_SHORT, 0.0) if arguments.short else judge(medians)
    if arguments.short:
        short += memory([(2000, 8000, TOKENS)])
    elif arguments.memory or not arguments.only:
        short += memory([(10_000, 200_000, TOKENS), (10_000, 20_000, LONG_TOKENS)])
    for line in short:
        print("short:", line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
