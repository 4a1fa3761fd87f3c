"""Resume: seconds and memory until the first row of a run that goes on, beside what pyarrow alone needs for the ids.

    python benchmarks/resume.py            1M and 10M rows in 1,000-row parts, 1M in 10-row parts; some minutes
    python benchmarks/resume.py --short    100k rows in either; seconds, for the suite

Each number is the best of several processes that do one thing: "pyarrow" reads the id column of every sidecar in as
many threads as a run does, and drops it; "resume" is `skip_done` over a `ParquetSink`, from the call to the first row
that is not done. Required: at most 24 bytes for an id, at most 1.5 times pyarrow's time, 10M rows in at most 400 MB.
The set must also hold as many ids as there are, answer yes for a thousand of them, and no for a thousand others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

BYTES_PER_ID = 24
TIMES_PYARROW = 1.5
LARGEST_RSS_MB = 400
READ_WORKERS = 16
SAMPLE = 1000
PIECES = 64


class Case(NamedTuple):
    rows: int
    rows_per_part: int
    ids: str


CASES = [
    Case(1_000_000, 1000, "content"),
    Case(1_000_000, 1000, "index"),
    Case(1_000_000, 10, "content"),
    Case(10_000_000, 1000, "content"),
    Case(10_000_000, 1000, "index"),
]
SHORT = [Case(100_000, 1000, "content"), Case(100_000, 1000, "index"), Case(20_000, 10, "content")]


def id_of(number: int, kind: str) -> str:
    """A content id, or one as `dataset_rows` makes it."""
    return hashlib.sha1(b"%d" % number).hexdigest()[:16] if kind == "content" else f"train-{number:09d}"


# --- Making an output -------------------------------------------------------------------------------------------------


def make(out: str, case: Case) -> None:
    os.makedirs(f"{out}/_manifest")
    size = case.rows_per_part * max(1, case.rows // case.rows_per_part // PIECES)
    pieces = [(out, case, range(start, min(start + size, case.rows))) for start in range(0, case.rows, size)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.starmap(_make_piece, pieces)


def _make_piece(out: str, case: Case, numbers: range) -> None:
    import pyarrow as pa

    from saturate.sinks import layout, part

    names = layout.PartNames()
    for first in range(0, len(numbers), case.rows_per_part):
        ids = [id_of(number, case.ids) for number in numbers[first : first + case.rows_per_part]]
        rows = pa.table({"id": ids, "error": pa.nulls(len(ids), pa.string()), "text": ["an answer"] * len(ids)})
        data, name = part.to_bytes(rows), names.next()
        for path, contents in (
            (name, data),
            (layout.sidecar_of(name), part.sidecar_bytes(rows, data.size)),
        ):
            with open(f"{out}/{path}", "wb") as file:
                file.write(contents)


# --- What is measured, each in a process of its own -------------------------------------------------------------------


def pyarrow_alone(out: str, case: Case) -> dict[str, float]:
    import pyarrow.parquet as pq

    def read(name: str) -> int:
        with pq.ParquetFile(f"{out}/_manifest/{name}") as file:
            return len(file.read(columns=["id"], use_threads=False))

    began = time.perf_counter()
    with ThreadPoolExecutor(READ_WORKERS) as pool:
        rows = sum(pool.map(read, os.listdir(f"{out}/_manifest")))
    assert rows == case.rows
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time()}


class Output:
    """An output as a run sees it, which remembers the set that the run was given."""

    def __init__(self, out: str):
        from saturate import ParquetSink

        self._sink = ParquetSink(out, read_workers=READ_WORKERS)
        self.done: Any = None

    def existing_ids(self, retry_errors: bool = False) -> Any:
        return self._sink.existing_ids(retry_errors)

    def done_ids(self, retry_errors: bool = False) -> Any:
        self.done = self._sink.done_ids(retry_errors)
        return self.done


def resume(out: str, case: Case) -> dict[str, float]:
    import pyarrow.parquet  # noqa: F401  (what it takes to import it is in neither of the two)

    from saturate import skip_done

    output = Output(out)
    began = time.perf_counter()
    left = list(skip_done([(id_of(-1, case.ids), {})], output))
    seconds, cpu = time.perf_counter() - began, time.process_time()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)
    done = output.done
    step = max(1, case.rows // SAMPLE)
    missed = sum(id_of(number, case.ids) not in done for number in range(0, case.rows, step))
    invented = sum(id_of(number, case.ids) in done for number in range(case.rows, case.rows + SAMPLE))
    return {
        "seconds": seconds,
        "cpu": cpu,
        "rss": rss,
        "bytes_per_id": done.nbytes / case.rows,
        "wrong": missed + invented + (len(done) != case.rows) + (len(left) != 1),
    }


MEASURED = {"pyarrow": pyarrow_alone, "resume": resume}


def in_a_process(what: str, out: str, case: Case) -> dict[str, float]:
    command = [sys.executable, os.path.abspath(__file__), "--measure", what, out, json.dumps(case)]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer


# --- The table --------------------------------------------------------------------------------------------------------


def run(cases: list[Case], repeats: int) -> list[str]:
    """Print a row for each case; returns what falls short."""
    print(
        f"{'rows':>10} {'per part':>8} {'ids':>8} {'pyarrow s':>10} {'resume s':>9} {'ratio':>6} "
        f"{'CPU':>6} {'bytes/id':>9} {'RSS MB':>7}"
    )
    short = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="saturate-resume-") as directory:
            out = f"{directory}/out"
            make(out, case)
            answers: dict[str, list[dict[str, float]]] = {what: [] for what in MEASURED}
            for _ in range(repeats):
                for what, found in answers.items():
                    found.append(in_a_process(what, out, case))
        best = {what: min(each["seconds"] for each in found) for what, found in answers.items()}
        cpu = {what: min(each["cpu"] for each in found) for what, found in answers.items()}
        ratio, last = best["resume"] / best["pyarrow"], answers["resume"][-1]
        rss = min(each["rss"] for each in answers["resume"])
        print(
            f"{case.rows:>10,} {case.rows_per_part:>8,} {case.ids:>8} "
            f"{best['pyarrow']:>10.2f} {best['resume']:>9.2f} {ratio:>6.2f} "
            f"{cpu['resume'] / cpu['pyarrow']:>6.2f} {last['bytes_per_id']:>9.1f} {rss:>7.0f}",
            flush=True,
        )
        if last["wrong"]:
            short.append(f"{case}: {last['wrong']:.0f} wrong answers")
        if ratio > TIMES_PYARROW:
            short.append(f"{case}: {ratio:.2f} times pyarrow's time")
        if last["bytes_per_id"] > BYTES_PER_ID:
            short.append(f"{case}: {last['bytes_per_id']:.1f} bytes for an id")
        if rss > LARGEST_RSS_MB:
            short.append(f"{case}: {rss:.0f} MB")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="small outputs, and no verdict on the time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, help="only the outputs with so many rows")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, out, case = arguments.measure
        print(json.dumps(MEASURED[what](out, Case(*json.loads(case)))))
        return 0
    cases = [case for case in CASES if arguments.rows in (None, case.rows)]
    short = run(SHORT if arguments.short else cases, 1 if arguments.short else arguments.repeats)
    if arguments.short:
        short = [line for line in short if "time" not in line]
    for line in short:
        print("short:", line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
