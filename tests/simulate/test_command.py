"""`saturate simulate` as a process."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from saturate.simulate import command
from saturate.simulate.faults import KINDS

READY = re.compile(r"saturate simulate: serving on http://127\.0\.0\.1:(\d+)/v1 \(a simulation, no model\)\n")


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command in a process of its own, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "saturate.simulate", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None
            yield process, int(ready[1])
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_ends_cleanly_on_a_signal(number: int) -> None:
    with running("--latency-s", "0", "--fault", "hang:contains=stuck", "--fault", "status:status=202") as (
        process,
        port,
    ):
        stuck = http.client.HTTPConnection("127.0.0.1", port)
        stuck.request("POST", "/v1/completions", '{"prompt": "stuck"}')
        other = http.client.HTTPConnection("127.0.0.1", port)
        other.request("POST", "/v1/completions", '{"prompt": "free"}')
        response = other.getresponse()
        assert response.status == 202
        response.read()
        other.request("GET", "/simulate/stats")
        assert json.load(other.getresponse())["served"] == 1
        process.send_signal(number)
        assert process.wait(10) == 0
        stuck.close()
        other.close()


def test_it_ends_when_the_process_it_was_told_of_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as parent, running("--parent-pid", str(parent.pid)) as (process, _):
        assert process.poll() is None
        parent.kill()
        parent.wait()
        assert process.wait(10) == 0


def test_it_goes_on_while_its_own_parent_lives() -> None:
    with running("--parent-pid", str(os.getpid())) as (process, _):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.7)


@pytest.mark.parametrize("option", ["--tokens=many", "--fault=explode", "--max-num-seqs=0", "--record=/nowhere/at/all"])
def test_arguments_that_make_no_sense_end_with_a_sentence(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--port=0", option]) == 2
    assert capsys.readouterr().err.startswith("saturate simulate: ")


def test_its_help_names_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"\n  {kind} " in said for kind in KINDS)
