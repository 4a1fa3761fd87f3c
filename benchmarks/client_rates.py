"""Our client and the published wheel against the same server process, which only pushes bytes prepared before.

    python benchmarks/client_rates.py            RawFrame, PlainBatch(64), HTTP x 200 B, 1 KiB, 8 KiB; three minutes
    python benchmarks/client_rates.py --short    one round of a little of each, judged by content and not by speed

Each number is the median of rounds in which both take their turn, each in a process of its own, where every record
goes through a plain `for` loop. A ratio is the median of the rounds' ratios, ours by the wheel's. Before that both read
each stream once, and must have seen the same bytes. Required: RawFrame 1.4, HTTP 1.0, PlainBatch 0.9 times the wheel's
records/s, no more CPU per record on RawFrame, and a first record within 50 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from prepared import running

HERE = Path(__file__).resolve().parent
FLOORS = {"raw": 1.4, "plain": 0.9, "http": 1.0}
CPU_CEILING = {"raw": 1.0}
FIRST_S = 0.050
NAMES = {"raw": "RawFrame", "plain": "PlainBatch(64)", "http": "HTTP"}


class Client(NamedTuple):
    python: str
    module: str


def wheel() -> Client:
    # The one place that knows how to make a peer's environment.
    sys.path.append(str(HERE.parent / "tests" / "interop"))
    from peers import peer_python  # type: ignore[import-not-found]

    return Client(str(peer_python("shuflr_client")), "shuflr_client")


def run(client: Client, url: str, epochs: int, *how: str) -> dict[str, Any]:
    """What a client's process says of one stream. It runs elsewhere: the wheel must not find our package."""
    command = [client.python, str(HERE / "iterate.py"), client.module, url, str(epochs), *how]
    with tempfile.TemporaryDirectory() as elsewhere:
        ran = subprocess.run(command, capture_output=True, text=True, cwd=elsewhere, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def compare(name: str, server: dict[str, Any], clients: dict[str, Client], epochs: int, rounds: int) -> list[str]:
    """Prints a line for one stream; what falls short of the floors."""
    form, _, size = name.partition("-")
    scheme, address = ("http", server["http"]) if form == "http" else ("shuflr", server["wire"])
    path = f"v1/streams/{name}" if form == "http" else name
    url = f"{scheme}://{address}/{path}"
    seen = {party: run(client, url, 1, "--digest") for party, client in clients.items()}
    if seen["ours"] != seen["wheel"] or seen["ours"]["records"] != server[name]["records"]:
        return [f"{name}: the clients saw {seen}, of {server[name]['records']} records"]
    runs: dict[str, list[dict[str, float]]] = {party: [] for party in clients}
    for _ in range(rounds):
        for party, client in clients.items():
            runs[party].append(run(client, url, epochs))
    records = epochs * server[name]["records"]
    rate, cpu = ratio(runs, "wall"), 1 / ratio(runs, "cpu")
    first = statistics.median(each["first"] for each in runs["ours"])
    middle = {party: statistics.median(each["wall"] for each in of_party) for party, of_party in runs.items()}
    print(
        f"{NAMES[form]:<15} {size:>6} {records / middle['ours']:>11,.0f} {records / middle['wheel']:>11,.0f} "
        f"{rate:>6.2f} {FLOORS[form]:>6} {cpu:>6.2f} {CPU_CEILING.get(form, ''):>8} {1000 * first:>6.1f} ms "
        f"{epochs * server[name]['content'] / middle['ours'] / 1e6:>6.0f}",
        flush=True,
    )
    short = []
    if rate < FLOORS[form]:
        short.append(f"{name}: {rate:.2f} of the wheel's records/s")
    if cpu > CPU_CEILING.get(form, float("inf")):
        short.append(f"{name}: {cpu:.2f} times the wheel's CPU per record")
    if first > FIRST_S:
        short.append(f"{name}: the first record after {1000 * first:.0f} ms")
    return short


def ratio(runs: dict[str, list[dict[str, float]]], figure: str) -> float:
    """How many times less of a figure ours needs, the median of the rounds."""
    return statistics.median(wheel[figure] / ours[figure] for ours, wheel in zip(runs["ours"], runs["wheel"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=400, help="of records in a stream")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1024, 8192])
    parser.add_argument("--forms", nargs="+", choices=list(FLOORS), default=list(FLOORS))
    options = parser.parse_args()
    rounds, unit, megabytes = (1, 4, 8) if options.short else (options.rounds, 20, options.megabytes)
    clients = {"ours": Client(sys.executable, "shuflr"), "wheel": wheel()}
    short = []
    print(f"{megabytes} MB a stream, medians of {rounds}")
    print(
        f"{'form':<15} {'record':>6} {'ours/s':>11} {'wheel/s':>11} {'ratio':>6} {'floor':>6} {'CPU x':>6} "
        f"{'at most':>8} {'first':>9} {'MB/s':>6}"
    )
    with running(options.sizes, unit) as server:
        for form in options.forms:
            for size in options.sizes:
                found = compare(f"{form}-{size}", server, clients, max(megabytes // unit, 1), rounds)
                # A moment on a busy machine says whether the content is right, not how fast it comes.
                short += [line for line in found if not options.short or "saw" in line]
    for line in short:
        print("short:", line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
