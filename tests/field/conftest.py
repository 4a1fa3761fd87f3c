"""What the field cases share: a program that can be killed, what an output holds, and short back-offs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from saturate.http import retry

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import sys
from saturate import Fixed, pump
from tests.conftest import chat, text, texts

pump(texts(int(sys.argv[3])), chat, text, sys.argv[1], sys.argv[2], window=Fixed(8), id_key="text",
     signal_source="none", flush_every=50)
"""
"""A user's script: the endpoint, the output and the number of rows are its arguments. Run again, it resumes."""


def records(output: Any) -> list[dict[str, Any]]:
    """Every record of every part, in no order that matters."""
    return [row for part in sorted(Path(output).glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]


def stored_ids(output: Any) -> Counter[str]:
    """How many records each id has in the output."""
    return Counter(record["id"] for record in records(output))


@pytest.fixture
def program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program given as text; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            # A SIGINT that the test runner itself was started to ignore would be ignored by it, too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry ladder as it is, the seconds that it chooses itself as hundredths."""
    monkeypatch.setattr(retry, "BACKOFF_FIRST_S", 0.01)
