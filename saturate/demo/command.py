"""`saturate demo`: runs the job, kills it midway, runs it again, and shows what happened.

Against `saturate simulate` by default, and then says so; with --endpoint and --model against a real server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from saturate.demo.docstrings import docstring_rows
from saturate.demo.plot import text_plot

DEFAULT_ROWS = 6_000
DEFAULT_REAL_ROWS = 200
KILL_AT_SHARE = 0.4

# An engine that a demo can wait for: about 250 requests a second at its best, with 96 of them running at once.
SIMULATION = ("--max-num-seqs", "96", "--step-s", "0.008", "--per-seq-s", "0.00004", "--tokens", "lognormal:32,0.4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to `parser`."""
    parser.description = "The main job on the docstrings of the Python standard library, killed midway and resumed."
    parser.add_argument("--endpoint", metavar="URL", help="a real server, such as http://localhost:8000/v1")
    parser.add_argument("--model", metavar="NAME", help="the model to ask there")
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help=f"how many rows (default {DEFAULT_ROWS}; {DEFAULT_REAL_ROWS} with --endpoint)",
    )
    parser.add_argument("--output", metavar="DIR", help="where the parquet goes (default demo-out/<date and time>)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; 0 when nothing was lost or duplicated, 1 when something was, 2 for arguments that cannot work."""
    if (arguments.endpoint is None) != (arguments.model is None):
        print("saturate demo: --endpoint and --model go together", file=sys.stderr)
        return 2
    if arguments.rows is not None and arguments.rows < 1:
        print("saturate demo: --rows must be at least 1", file=sys.stderr)
        return 2
    output = Path(arguments.output or Path("demo-out") / time.strftime("%Y-%m-%d-%H%M%S")).resolve()
    if output.exists() and any(output.iterdir()):
        print(f"saturate demo: {output} is not empty; pass another --output", file=sys.stderr)
        return 2
    output.mkdir(parents=True, exist_ok=True)
    wanted = arguments.rows or (DEFAULT_REAL_ROWS if arguments.endpoint else DEFAULT_ROWS)
    ids = [row_id for row_id, _ in docstring_rows(wanted)]
    print(f"rows: {len(ids)} docstrings of the Python standard library")
    with _engine(arguments, output) as engine:
        job = _Job(engine, output, wanted, output / "_demo")
        (output / "_demo").mkdir()
        job.run_and_kill(len(ids))
        job.run_to_the_end()
        return _report(job, ids, engine)


@dataclass(frozen=True)
class _Engine:
    endpoint: str
    model: str
    record: Optional[Path]


@contextlib.contextmanager
def _engine(arguments: argparse.Namespace, output: Path) -> Iterator[_Engine]:
    """The engine to run against: the user's, or a simulation in a process of its own."""
    if arguments.endpoint:
        print(f"engine: {arguments.endpoint}, model {arguments.model}")
        yield _Engine(arguments.endpoint, arguments.model, None)
        return
    record = output / "_demo-served.txt"
    command = [sys.executable, "-m", "saturate.simulate", "--port", "0", "--record", str(record), *SIMULATION]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if "serving on " not in ready:
            raise RuntimeError("the simulated engine did not start; see its message above")
        endpoint = ready.split("serving on ")[1].split()[0]
        print(f"engine: SIMULATED (saturate simulate, no model) at {endpoint}, in a process of its own")
        yield _Engine(endpoint, "simulated", record)
    finally:
        process.terminate()
        process.wait(timeout=20)
        if process.stdout is not None:
            process.stdout.close()


class _Job:
    """The pump process, started twice."""

    def __init__(self, engine: _Engine, output: Path, limit: int, notes: Path):
        self.output = output
        self.answered = [notes / "answered-1.txt", notes / "answered-2.txt"]
        self._setup = {"endpoint": engine.endpoint, "model": engine.model, "output": str(output), "limit": limit}

    def run_and_kill(self, rows: int) -> None:
        """The first run: SIGKILL to its process once a part of the rows was answered."""
        print("\nrun 1 (it will be killed):")
        process = self._start(0)
        goal = max(1, int(KILL_AT_SHARE * rows))
        while process.poll() is None and _lines(self.answered[0]) < goal:
            time.sleep(0.02)
        process.kill()
        process.wait()
        print(f"  SIGKILL after {_lines(self.answered[0])} answers")

    def run_to_the_end(self) -> None:
        """The second run: the same command again."""
        print("\nrun 2 (the same command again):")
        process = self._start(1)
        if process.wait() != 0:
            raise RuntimeError(f"the second run failed with exit status {process.returncode}; see its message above")

    def _start(self, turn: int) -> subprocess.Popen[bytes]:
        self.answered[turn].touch()
        setup = {**self._setup, "answered": str(self.answered[turn])}
        return subprocess.Popen([sys.executable, "-m", "saturate.demo.job", json.dumps(setup)])


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _report(job: _Job, ids: list[str], engine: _Engine) -> int:
    import pyarrow.parquet as pq

    from saturate.sinks import read_output

    stats: dict[str, Any] = json.loads((job.output / "completions" / "stats-0.json").read_text())
    stored: Counter[str] = Counter()
    for part in sorted(job.output.glob("part-*.parquet")):
        stored.update(pq.read_table(part, columns=["id"]).column("id").to_pylist())
    good = {row_id for row_id, _ in read_output(str(job.output))}
    failed = set(stored) - good
    duplicates = sum(count - 1 for count in stored.values())
    lost = len(set(ids) - set(stored))
    twice, of_what = _paid_twice(job, engine)
    ticks = [json.loads(line) for path in job.output.glob("telemetry-*.jsonl") for line in path.read_text().split("\n")]
    window = [(tick["t"], tick["limit"]) for tick in ticks]
    print(
        f"""
what happened
  rows done before the kill   {stats["rows_done_prior"]}
  rows done now               {stats["rows_processed"]} ({stats["rows_failed"]} failed)
  requests paid twice         {twice} ({of_what})
  duplicates                  {duplicates}
  lost                        {lost}
  errors stored               {len(failed)}

the window over time (run 2)
{text_plot(window)}

the dataset is in {job.output}
  read it:  python -c "import saturate; print(next(saturate.read_output({str(job.output)!r})))"
"""
    )
    return 0 if not duplicates and not lost else 1


def _paid_twice(job: _Job, engine: _Engine) -> tuple[int, str]:
    """Answers beyond one per row, as far as somebody can know, and who says so."""
    if engine.record is not None:
        served = Counter(line.split()[0] for line in engine.record.read_text().splitlines() if line.endswith(" 200"))
        return sum(count - 1 for count in served.values()), "by the engine's own record; they were on the wire"
    first, second = (set(path.read_text().splitlines()) for path in job.answered)
    return len(first & second), "answers that both runs received"
