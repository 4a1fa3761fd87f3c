"""A long run through a server that misbehaves at random and is restarted, with a kill every minute: nothing shows.

    python benchmarks/soak.py            200,000 rows, a kill a minute, a restart of the server every 20 s
    python benchmarks/soak.py --short    2,000 rows, a kill and a restart every few seconds; for the suite

`saturate simulate` answers some requests with errors, refusals, closed connections, half bodies, garbage, slow drips,
headers and then silence, or not at all; it is killed and started again on its port meanwhile. The job, a `pump` with a
window of 64, is ended by a signal of a random kind (kill.py) and started again by the same command until it finishes.
A row in a thousand is refused for good. Required at the end: what is read back equals, row by row, what a server
without faults would have answered, no id has two successes, exactly the refused ids have only an error, and no journal
is left.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
from kill import KILLS, heed_interrupts

from saturate import ParquetSink, read_output
from saturate.simulate import answer
from saturate.sinks import layout

WINDOW = 64
TOKENS = 4
POISONED = 1000
READ_TIMEOUT_S = 3.0
ONE_JOB_S = 1200
# Rows that five attempts in a row were unlucky for; a run that sends errors again is over soon.
MOST_REPEATS = 8
FAULTS = (
    "error:status=500,rate=0.01",
    "error:status=503,rate=0.01,retry_after=0.1",
    "error:status=429,rate=0.01,retry_after=0.1",
    "drop:rate=0.005",
    "drop:rate=0.003,reset=1",
    "drop:rate=0.003,late=1",
    "drop_mid_body:rate=0.005",
    "malformed:rate=0.005,shape=truncated",
    "malformed:rate=0.005,shape=html",
    "chunked:rate=0.1",
    "gzip:rate=0.1",
    "drip:rate=0.002,bytes_per_s=500",
    "hang:rate=0.0005",
    "hang_after_headers:rate=0.0005",
    "keep_alive:requests=500,silent=1",
    "error:status=400,contains=poison",
)

JOB = """
import json, sys
from saturate import Fixed, pump
setup = json.loads(sys.argv[1])
def prompt(n):
    return f"row {n}" + (" poison" if n % setup["poisoned"] == 7 else "")
pump(
    ((f"row-{n}", {"n": n}) for n in range(setup["rows"])),
    lambda row: {"messages": [{"role": "user", "content": prompt(row["n"])}], "max_tokens": setup["tokens"]},
    lambda row, body: {"n": row["n"], "text": body["choices"][0]["message"]["content"]},
    setup["endpoint"], setup["out"], window=Fixed(setup["window"]), read_timeout=setup["read_timeout"],
    retry_errors=setup["retry_errors"],
)
"""


def prompt(number: int) -> str:
    return f"row {number}" + (" poison" if number % POISONED == 7 else "")


class Server:
    """The simulator, which keeps its port from one life to the next."""

    def __init__(self, record: Path, seed: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._record = record
        self._seed = seed
        self.lives = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self.lives += 1
        command = [sys.executable, "-m", "saturate.simulate", "--port", str(self.port), "--latency-s", "0.03"]
        command += ["--max-num-seqs", "1024", "--record", str(self._record), "--parent-pid", str(os.getpid())]
        command += ["--seed", str(self._seed + self.lives)]
        for fault in FAULTS:
            command += ["--fault", fault]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the simulated server did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def restart_now_and_then(server: Server, every_s: float, chance: random.Random, over: threading.Event) -> None:
    while not over.wait(every_s * chance.uniform(0.5, 1.5)):
        server.stop()
        over.wait(chance.uniform(0.0, 0.5))
        server.start()


def run_to_the_end(
    setup: dict[str, object], kill_every_s: float, chance: random.Random, log: Path
) -> collections.Counter:
    """Start the job until it ends by itself, and kill it now and then; how often it was killed in which way."""
    kills: collections.Counter[str] = collections.Counter()
    give_up = time.monotonic() + ONE_JOB_S
    while time.monotonic() < give_up:
        with open(log, "ab") as file:
            job = subprocess.Popen(
                [sys.executable, "-c", JOB, json.dumps(setup)], stdout=file, stderr=file, start_new_session=True
            )
        try:
            status = job.wait(kill_every_s * chance.uniform(0.7, 1.3))
        except subprocess.TimeoutExpired:
            name = chance.choice(list(KILLS))
            kills[name] += 1
            KILLS[name](job.pid)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
                raise RuntimeError(f"the job did not end after {name}:\n{log.read_text()[-3000:]}") from None
        else:
            if status == 0:
                return kills
            raise RuntimeError(f"the job failed with {status}:\n{log.read_text()[-3000:]}")
    raise RuntimeError(f"not done after {ONE_JOB_S} s:\n{log.read_text()[-3000:]}")


def successes_and_errors(out: Path) -> tuple[collections.Counter[str], set[str]]:
    """How many successes each id has, and the ids that have an error."""
    succeeded: collections.Counter[str] = collections.Counter()
    failed: set[str] = set()
    for name in filter(layout.is_part, os.listdir(out)):
        table = pq.read_table(out / name, columns=["id", "error"])
        for id_, error in zip(table.column("id").to_pylist(), table.column("error").to_pylist()):
            if error:
                failed.add(id_)
            else:
                succeeded[id_] += 1
    return succeeded, failed


def differences(out: Path, rows: int) -> list[str]:
    """What is not as a server without faults would have left it."""
    reference = {f"row-{n}": {"n": n, "text": answer(prompt(n), TOKENS)} for n in range(rows) if n % POISONED != 7}
    refused = {f"row-{n}" for n in range(7, rows, POISONED)}
    succeeded, failed = successes_and_errors(out)
    found = dict(read_output(out))
    said = []
    wrong = [id_ for id_, row in reference.items() if found.get(id_) != row]
    if wrong:
        said.append(f"{len(wrong)} rows differ, such as {wrong[0]}: {found.get(wrong[0])}")
    if len(found) != len(reference):
        said.append(f"{len(found)} rows are read back, not {len(reference)}")
    twice = [id_ for id_, count in succeeded.items() if count > 1]
    if twice:
        said.append(f"{len(twice)} ids have two successes, such as {twice[0]}")
    if failed - succeeded.keys() != refused:
        said.append(f"{len((failed - succeeded.keys()) ^ refused)} ids have an error and no success, or the reverse")
    if ParquetSink(out).existing_ids() != reference.keys() | refused:
        said.append("the done-set is not all ids")
    if (out / layout.JOURNAL).exists():
        said.append("a journal is left")
    return said


def main() -> int:
    heed_interrupts()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="S")
    parser.add_argument("--restart-every", type=float, default=20.0, metavar="S")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows, kill_every_s, restart_every_s = arguments.rows, arguments.kill_every, arguments.restart_every
    if arguments.short:
        rows, kill_every_s, restart_every_s = 2000, 2.5, 4.0
    with tempfile.TemporaryDirectory(prefix="saturate-soak-") as directory:
        record, log, out = Path(directory, "answers"), Path(directory, "log"), Path(directory, "out")
        server, over = Server(record, arguments.seed), threading.Event()
        server.start()
        restarter = threading.Thread(
            target=restart_now_and_then, args=(server, restart_every_s, random.Random(arguments.seed), over)
        )
        restarter.start()
        began = time.monotonic()
        setup: dict[str, object] = {"endpoint": server.endpoint, "out": str(out), "rows": rows, "window": WINDOW}
        setup |= {"tokens": TOKENS, "poisoned": POISONED, "read_timeout": READ_TIMEOUT_S, "retry_errors": False}
        try:
            chance = random.Random(arguments.seed + 1)
            kills = run_to_the_end(setup, kill_every_s, chance, log)
            elapsed_s = time.monotonic() - began
            setup["retry_errors"] = True
            repeats = 0
            while len(successes_and_errors(out)[0]) < rows - len(range(7, rows, POISONED)) and repeats < MOST_REPEATS:
                repeats += 1
                kills += run_to_the_end(setup, kill_every_s, chance, log)
        finally:
            over.set()
            restarter.join()
            server.stop()
        answered = collections.Counter(
            line.split()[0] for line in record.read_text().splitlines() if line.endswith("200")
        )
        print(
            f"{rows:,} rows in {elapsed_s:.0f} s, {server.lives - 1} restarts of the server, {repeats} runs for errors"
        )
        for name, count in kills.items():
            print(f"  {count} x {name}")
        print(
            f"  {sum(answered.values()) - len(answered)} answers more than rows (late drops and half bodies among them)"
        )
        said = differences(out, rows)
    for line in said:
        print("short:", line)
    print("the end state differs from the reference" if said else "the end state equals the reference, row by row")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
