"""Our client beside the published wheel, on the streams of one server: the short form of the benchmark."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_our_client_and_the_public_one_see_the_same_records():
    run = subprocess.run(
        [sys.executable, "benchmarks/client_rates.py", "--short"], cwd=ROOT, capture_output=True, text=True, timeout=380
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "PlainBatch(64)" in run.stdout
