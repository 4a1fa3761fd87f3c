"""The benchmarks that judge behaviour, not speed, in their short forms: each compares within one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_auto_delivers_in_real_time_what_fixed_windows_do():
    run = subprocess.run(
        [sys.executable, "benchmarks/adaptive.py", "--short"], cwd=ROOT, capture_output=True, text=True, timeout=380
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| Auto gauges |" in run.stdout and "| Auto blind |" in run.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("rates")
def test_a_server_gives_at_least_half_of_what_it_does_on_a_quiet_machine():
    """By processor time, which others on the machine disturb little."""
    run = subprocess.run(
        [sys.executable, "benchmarks/server_rates.py", "--short"], cwd=ROOT, capture_output=True, text=True, timeout=170
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "paused raw streams" in run.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("rates")
@pytest.mark.parametrize(
    ("benchmark", "says"), [("pair.py", "raw frames"), ("many_datasets.py", "share")], ids=["pair", "many_datasets"]
)
def test_a_client_reads_what_the_server_gives_and_keeps_within_its_memory(benchmark, says):
    run = subprocess.run(
        [sys.executable, f"benchmarks/{benchmark}", "--short"], cwd=ROOT, capture_output=True, text=True, timeout=170
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert says in run.stdout
