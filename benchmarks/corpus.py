"""JSON lines to measure on, and commands timed in turns: what benchmarks/convert.py, stream.py and frames.py share."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

SHUFLR = [sys.executable, "-c", "from shuflr.cli import main; main()"]
# An installed package has its byte code; a source tree gets it from the first, uncounted run, if that may write it.
_INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_UNIQUE = 20_000_000  # bytes of distinct lines, repeated to the size wanted: ten windows of zstd -3


def sentences(record_size: int, total: int, seed: int = 1) -> "list[bytes]":
    """JSON lines of about `record_size` bytes whose text compresses about as well as prose does."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(5000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    lines, size = [], 0
    while size < total:
        target = int(record_size * draw.uniform(0.7, 1.3)) - 40
        text = " ".join(draw.choices(words, weights, k=max(1, target // 6)))
        line = json.dumps({"id": len(lines), "score": round(draw.random(), 4), "text": text}).encode() + b"\n"
        lines.append(line)
        size += len(line)
    return lines


def corpus(folder: Path, record_size: int, megabytes: int) -> Path:
    """A file of about that many MB of such lines.

    Another process makes it: what this one holds would count as memory of the commands it starts."""
    path = folder / f"{record_size}.jsonl"
    subprocess.run([sys.executable, __file__, str(path), str(record_size), str(megabytes)], check=True)
    return path


def write(path: str, record_size: int, megabytes: int) -> None:
    block = b"".join(sentences(record_size, min(_UNIQUE, megabytes * 10**6)))
    with open(path, "wb") as file:
        while file.tell() < megabytes * 10**6:
            file.write(block)


class Run(NamedTuple):
    """One run of a command: elapsed and processor seconds, and the most memory it held, in MiB."""

    wall: float
    cpu: float
    peak: float


def timed(command: "list[str]", output: str = os.devnull) -> Run:
    """Runs a command with its output going nowhere. Raises CalledProcessError."""
    with open(output, "wb") as sink:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.DEVNULL, env=_INSTALLED)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def race(commands: "dict[str, list[str]]", rounds: int) -> "dict[str, list[Run]]":
    """Every command once a round, in turns, so that a busy machine is busy for all of them; the first round is not
    counted."""
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            run = timed(command)
            if turn:
                runs[name].append(run)
    return runs


def ratio(yardstick: "list[Run]", candidate: "list[Run]") -> "tuple[float, float]":
    """How many times as fast as the yardstick a candidate is, by elapsed and by processor time: medians of rounds."""
    wall = statistics.median(y.wall / c.wall for y, c in zip(yardstick, candidate))
    return wall, statistics.median(y.cpu / c.cpu for y, c in zip(yardstick, candidate))


def median(runs: "list[Run]") -> Run:
    """The medians of each figure."""
    return Run(*(statistics.median(column) for column in zip(*runs)))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
