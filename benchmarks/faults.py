"""Between every pair of operations of a flush: a failure, a lost answer, half a file, a delay, or a SIGKILL.

    python benchmarks/faults.py            every operation with every fault, in both kinds of store; some minutes
    python benchmarks/faults.py --short    four at random for each kind of store; for the suite

A program appends rows through `ParquetSink` to a store that strikes at its n-th operation (faulty_store.py) and then
runs once more, or, in the trials "in the next run", is killed, struck while it recovers, and runs once more. Required
after each step: every part and sidecar that a reader would open opens, and a sidecar names the ids of its part. At the
end: every row is there, once, with its values; the done-set has exactly these ids; and no journal is left.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from saturate.sinks import layout

HERE = Path(__file__).resolve().parent
ROWS = 11
ROWS_PER_PART = 4
FAULTS = ("fail", "fail after", "torn", "delay", "kill", "kill after", "kill all", "kill all after")
PROTOCOLS = ("faulty", "r2")
SHORT = 4

# As a run does it: what is done is not done again, and a sink that fails ends the program with a status.
PROGRAM = """
import json, os, sys
import fsspec
from saturate.sinks import ParquetSink, SinkError
setup = json.loads(sys.argv[1])
sys.path.insert(0, setup["here"])
fsspec.register_implementation(setup["protocol"], "faulty_store.FaultyFileSystem", clobber=True)
try:
    with ParquetSink(setup["uri"], setup["part"], give_up_after=20) as sink:
        done = sink.existing_ids()
        for n in range(setup["rows"]):
            if f"r{n}" not in done:
                sink.append({"id": f"r{n}", "error": None, "n": n, "text": "x" * 50})
except SinkError as error:
    sys.exit(f"SinkError: {error}")
"""


class Trial(NamedTuple):
    protocol: str
    fault: str
    at: int
    in_next_run: bool = False

    def __str__(self) -> str:
        return f"{self.protocol}, {self.fault} at {self.at}{', in the next run' if self.in_next_run else ''}"


class Shortfall(Exception):
    """Something is not as it must be."""


class Stand:
    """One output and the program that writes it."""

    def __init__(self, protocol: str, directory: str) -> None:
        self._protocol = protocol
        self._directory = Path(directory)
        self.out = self._directory / "out"
        self._log = self._directory / "operations"
        self._journals = self._directory / "cache" / "saturate" / "journal"

    def run(self, fault: str = "", at: int = 0) -> int:
        """Run the program with that fault; how many operations its writer did."""
        self._log.write_text("")
        plan = {"log": str(self._log), "at": at, "how": fault, "whole": self._protocol == "r2"}
        setup = {
            "here": str(HERE),
            "protocol": self._protocol,
            "uri": f"{self._protocol}://{self.out}",
            "part": ROWS_PER_PART,
            "rows": ROWS,
        }
        environment = {
            **os.environ,
            "FAULTY": json.dumps(plan),
            "XDG_CACHE_HOME": str(self._directory / "cache"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        }
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(setup)],
            env=environment,
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        killed = at and fault.startswith("kill")
        if ended.returncode and not killed:
            raise Shortfall(f"the program ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return len(self._log.read_text().splitlines())

    def check_what_is_visible(self) -> collections.Counter[str]:
        """Every part and sidecar opens and they agree; the ids of the parts."""
        ids: collections.Counter[str] = collections.Counter()
        manifest = self.out / layout.MANIFEST
        sidecars = (
            {p.name for p in manifest.iterdir() if layout.part_of_sidecar(p.name)} if manifest.exists() else set()
        )
        for path in sorted(self.out.iterdir()) if self.out.exists() else []:
            if not layout.is_part(path.name):
                continue
            table = pq.read_table(path)
            for row in table.to_pylist():
                if row != {"id": f"r{row['n']}", "error": None, "n": row["n"], "text": "x" * 50}:
                    raise Shortfall(f"{path.name} has the row {row}")
            ids.update(table.column("id").to_pylist())
            name = layout.sidecar_name(path.name)
            if name in sidecars:
                sidecars.discard(name)
                if not pq.read_table(manifest / name).column("id").equals(table.column("id")):
                    raise Shortfall(f"{name} does not name the ids of its part")
        if sidecars:
            raise Shortfall(f"sidecars without a part: {sorted(sidecars)}")
        if ids and max(ids.values()) > 1:
            raise Shortfall(f"ids that are there twice: {[each for each, count in ids.items() if count > 1]}")
        return ids

    def check_the_end(self) -> None:
        from saturate import ParquetSink, read_output

        wanted = {f"r{n}" for n in range(ROWS)}
        if self.check_what_is_visible().keys() != wanted:
            raise Shortfall("not every row is there")
        if ParquetSink(self.out).existing_ids() != wanted or {id_ for id_, _ in read_output(self.out)} != wanted:
            raise Shortfall("the done-set or the reader disagrees with the parts")
        if self._journals.exists() and any(self._journals.iterdir()):
            raise Shortfall("a journal is left")


def attempt(trial: Trial) -> None:
    """Raises Shortfall."""
    with tempfile.TemporaryDirectory(prefix="saturate-faults-") as directory:
        stand = Stand(trial.protocol, directory)
        if trial.in_next_run:
            # The first part is durable and two are in the journal when the first run is killed.
            stand.run("kill all", operations_of(trial.protocol)[1])
            stand.check_what_is_visible()
        stand.run(trial.fault, trial.at)
        stand.check_what_is_visible()
        stand.run()
        stand.check_the_end()


_OPERATIONS: dict[str, tuple[int, int, int]] = {}


def operations_of(protocol: str) -> tuple[int, int, int]:
    """How many operations a whole run does, at which one it has landed its first part, and how many the next does."""
    if protocol not in _OPERATIONS:
        with tempfile.TemporaryDirectory(prefix="saturate-faults-") as directory:
            stand = Stand(protocol, directory)
            count = stand.run()
            stand.check_the_end()
        first = count // 2
        with tempfile.TemporaryDirectory(prefix="saturate-faults-") as directory:
            stand = Stand(protocol, directory)
            stand.run("kill all", first)
            _OPERATIONS[protocol] = (count, first, stand.run())
    return _OPERATIONS[protocol]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--trials", type=int, help="so many, at random, of each kind of store")
    parser.add_argument("--store", action="append", choices=PROTOCOLS, help="only this kind of store")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this fault")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    good = True
    print(f"{'store':<8} {'operations':>10} {'fault':<16} {'trials':>6} {'short':>6}")
    for protocol in arguments.store or PROTOCOLS:
        count, _, recovering = operations_of(protocol)
        trials = [Trial(protocol, fault, at) for fault in FAULTS for at in range(1, count + 1)]
        trials += [Trial(protocol, fault, at, True) for fault in FAULTS for at in range(1, recovering + 1)]
        count_of_trials = SHORT if arguments.short else arguments.trials
        if count_of_trials is not None:
            trials = random.Random(arguments.seed).sample(trials, min(count_of_trials, len(trials)))
        for fault in arguments.fault or FAULTS:
            of_this = [trial for trial in trials if trial.fault == fault]
            failures = []
            for trial in of_this:
                try:
                    attempt(trial)
                except (Shortfall, subprocess.TimeoutExpired) as reason:
                    failures.append(f"{trial}: {reason}")
            print(
                f"{protocol:<8} {f'{count}+{recovering}':>10} {fault:<16} {len(of_this):>6} {len(failures):>6}",
                flush=True,
            )
            for line in failures:
                print("   ", line)
            good = good and not failures
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
