"""The short form of each proof: killed, struck or resumed, nothing is there twice and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("proof", ["client.py", "faults.py", "kill.py", "resume.py", "soak.py"])
def test_the_short_form_of_a_proof_holds(proof: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / proof), "--short"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
