"""Kill it at a random moment and run it again: nothing is there twice, nothing is lost, little is paid twice.

    python benchmarks/kill.py            20 kills of each kind, then 20 of one shard among four; about ten minutes
    python benchmarks/kill.py --short    2 of each, and no verdict on what is paid twice; for the suite

A job of `pump` with a window of 64 runs against `saturate simulate` at 50 ms, which records each answer before it
leaves. Once a random share of the rows has been answered the job is killed, and the same job is started again at once.
"paid twice" are rows that the server has answered more than once. Required of every single run: no id twice in the
parts, no id missing, paid twice <= 64, what a window of requests in flight is.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from saturate import read_output
from saturate.sinks import layout

WINDOW = 64
LATENCY_S = 0.05
ROWS = 1500
SHARDS = 4
TIMEOUT_S = 120

JOB = """
import json, sys
from saturate import Fixed, pump, shard_select
setup = json.loads(sys.argv[1])
rank, world = setup["shard"]
rows = ((f"row-{n}", {"n": n}) for n in range(setup["rows"]))
pump(
    shard_select(rows, rank, world),
    lambda row: {"messages": [{"role": "user", "content": f"row {row['n']}"}], "max_tokens": 4},
    lambda row, body: {"n": row["n"], "text": body["choices"][0]["message"]["content"]},
    setup["endpoint"], setup["out"], window=Fixed(setup["window"]), shard=(rank, world), flush_every=setup["part"],
)
"""


class Outcome(NamedTuple):
    duplicates: int
    lost: int
    paid_twice: int
    ended_after_s: float


# --- The processes ----------------------------------------------------------------------------------------------------


@contextmanager
def simulator(directory: Path) -> Iterator[tuple[str, Path]]:
    """The endpoint of a server of its own, and the file in which it records its answers."""
    record = directory / "answers"
    record.touch()
    command = [sys.executable, "-m", "saturate.simulate", "--port", "0", "--latency-s", str(LATENCY_S)]
    command += ["--max-num-seqs", "1024", "--record", str(record), "--parent-pid", str(os.getpid())]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stdout is not None
    try:
        endpoint = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        yield endpoint, record
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def start(setup: dict[str, object], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", JOB, json.dumps(setup)], stdout=file, stderr=file, start_new_session=True
        )


def writer_of(pid: int) -> int:
    """The process id of a job's writer."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == pid and b"saturate.sinks.writer" in (entry / "cmdline").read_bytes():
                        return int(entry.name)
                except OSError:
                    continue
        time.sleep(0.01)
    raise TimeoutError("the job has no writer")


def wait_for_answers(record: Path, count: int, job: subprocess.Popen[bytes]) -> None:
    while len(record.read_bytes().splitlines()) < count and job.poll() is None:
        time.sleep(0.002)


# --- What is killed, and what must be there afterwards ----------------------------------------------------------------

KILLS: dict[str, Callable[[int], None]] = {
    "SIGKILL, the whole process group": lambda pid: os.killpg(pid, signal.SIGKILL),
    "SIGKILL, the program alone": lambda pid: os.kill(pid, signal.SIGKILL),
    "SIGKILL, the writer alone": lambda pid: os.kill(writer_of(pid), signal.SIGKILL),
    "SIGTERM": lambda pid: os.kill(pid, signal.SIGTERM),
    "SIGINT": lambda pid: os.kill(pid, signal.SIGINT),
}


def outcome(out: Path, record: Path, ended_after_s: float) -> Outcome:
    ids: collections.Counter[str] = collections.Counter()
    for name in filter(layout.is_part, os.listdir(out)):
        ids.update(pq.read_table(out / name, columns=["id"]).column("id").to_pylist())
    wanted = {f"row-{n}" for n in range(ROWS)}
    answered = collections.Counter(line.split()[0] for line in record.read_text().splitlines() if line.endswith("200"))
    return Outcome(
        duplicates=sum(ids.values()) - len(ids),
        lost=len(wanted - ids.keys()) + len(wanted - {id_ for id_, _ in read_output(out)}),
        paid_twice=sum(answered.values()) - len(answered),
        ended_after_s=ended_after_s,
    )


def one_program(kill: Callable[[int], None], chance: random.Random, directory: Path) -> Outcome:
    out, log = directory / "out", directory / "log"
    with simulator(directory) as (endpoint, record):
        setup: dict[str, object] = {"endpoint": endpoint, "out": str(out), "rows": ROWS, "shard": (0, 1)}
        setup |= {"window": WINDOW, "part": chance.choice([50, 10_000])}
        job = start(setup, log)
        wait_for_answers(record, chance.randrange(1, ROWS - 2 * WINDOW), job)
        kill(job.pid)
        began = time.monotonic()
        job.wait(TIMEOUT_S)
        ended_after_s = time.monotonic() - began
        finish(start(setup, log), log)
        return outcome(out, record, ended_after_s)


def one_of_four(chance: random.Random, directory: Path) -> Outcome:
    """Four shards into one output; one is killed as a group and started again while the others run."""
    out, log = directory / "out", directory / "log"
    with simulator(directory) as (endpoint, record):
        setups: list[dict[str, object]] = [
            {"endpoint": endpoint, "out": str(out), "rows": ROWS, "shard": (rank, SHARDS), "window": WINDOW}
            | {"part": chance.choice([50, 10_000])}
            for rank in range(SHARDS)
        ]
        jobs = [start(setup, log) for setup in setups]
        victim = chance.randrange(SHARDS)
        wait_for_answers(record, chance.randrange(1, ROWS // 2), jobs[victim])
        os.killpg(jobs[victim].pid, signal.SIGKILL)
        began = time.monotonic()
        jobs[victim].wait(TIMEOUT_S)
        ended_after_s = time.monotonic() - began
        jobs[victim] = start(setups[victim], log)
        for job in jobs:
            finish(job, log)
        return outcome(out, record, ended_after_s)


def finish(job: subprocess.Popen[bytes], log: Path) -> None:
    if job.wait(TIMEOUT_S):
        raise RuntimeError(f"a run that goes on failed:\n{log.read_text()}")


# --- The table --------------------------------------------------------------------------------------------------------


def measure(
    name: str, trial: Callable[[random.Random, Path], Outcome], count: int, seed: int, most_paid: float
) -> bool:
    """Print a line; whether every run of the kind was as it must be."""
    outcomes = []
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="saturate-kill-") as directory:
            outcomes.append(trial(random.Random(f"{name} {seed} {number}"), Path(directory)))
    paid = [each.paid_twice for each in outcomes]
    duplicates, lost = sum(each.duplicates for each in outcomes), sum(each.lost for each in outcomes)
    good = not duplicates and not lost and max(paid) <= most_paid
    print(
        f"{name:<34} {count:>5} {duplicates:>11} {lost:>5} {statistics.mean(paid):>10.1f} {max(paid):>5} "
        f"{max(each.ended_after_s for each in outcomes):>9.2f}  {'' if good else 'SHORT'}",
        flush=True,
    )
    return good


def heed_interrupts() -> None:
    """A shell starts its background jobs with SIGINT ignored, and their children inherit that: a job that is deaf to
    the signal would pass every trial by it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> int:
    heed_interrupts()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    count = 2 if arguments.short else arguments.kills
    most_paid = math.inf if arguments.short else WINDOW
    print(f"{ROWS} rows at {LATENCY_S * 1000:.0f} ms, window {WINDOW}")
    print(f"{'killed':<34} {'times':>5} {'duplicates':>11} {'lost':>5} {'paid twice':>10} {'most':>5} {'ended s':>9}")
    good = [
        measure(
            name,
            lambda chance, directory, kill=kill: one_program(kill, chance, directory),
            count,
            arguments.seed,
            most_paid,
        )
        for name, kill in KILLS.items()
    ]
    good.append(measure(f"SIGKILL, one of {SHARDS} shards", one_of_four, count, arguments.seed, most_paid))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
