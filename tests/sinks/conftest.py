"""What the sink tests share: an output directory, a way to run a program, and proof that no writer outlives a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def writers_of(pid: int) -> list[int]:
    """The writer processes that `pid` has started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent[0] != "Z" and int(parent[1]) == pid and b"saturate.sinks.writer" in command:
                found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def no_writer_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 10
    while writers_of(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = writers_of(os.getpid())
    for writer in left:  # so that only the test that left it fails
        os.kill(writer, signal.SIGKILL)
    assert left == []


@pytest.fixture
def writers() -> Callable[[int], list[int]]:
    return writers_of


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program given as text, with arguments; its output is captured. It does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            # A test that fails may leave a writer that it had stopped, which would never see its program end.
            for writer in writers_of(process.pid):
                os.kill(writer, signal.SIGKILL)
            process.kill()
            process.wait()


@pytest.fixture
def writer_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lands is the same, and a process for each of these tests would be most of their time."""
    monkeypatch.setattr("saturate.sinks.handover.PROCESS_LOCAL_STORES", frozenset({"memory", "file"}))
