"""Each example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(example: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        capture_output=True, text=True, cwd=cwd, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_lands_its_rows_and_sends_nothing_the_second_time(tmp_path):
    assert run("quickstart.py", tmp_path).startswith("50 rows now, 0 before; 50 in")
    assert run("quickstart.py", tmp_path).startswith("0 rows now, 50 before; 50 in")
