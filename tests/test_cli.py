"""The `saturate` command: demo and simulate."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from saturate.simulate import Simulator


def saturate(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "saturate.cli", *arguments], capture_output=True, text=True, timeout=timeout
    )


def figures(output: str) -> dict[str, int]:
    return {name.strip(): int(n) for name, n in re.findall(r"^  ([a-z][a-z ]+?)  +(\d+)", output, re.MULTILINE)}


def test_the_demo_kills_its_pump_resumes_it_and_shows_what_happened(tmp_path):
    shown = saturate("demo", "--rows", "600", "--output", str(tmp_path / "out"))
    assert shown.returncode == 0, shown.stderr
    assert "SIMULATED" in shown.stdout
    got = figures(shown.stdout)
    assert got["rows done before the kill"] + got["rows done now"] == 600
    assert got["rows done before the kill"] >= 200
    assert (got["duplicates"], got["lost"]) == (0, 0)
    assert 0 <= got["requests paid twice"] <= 200
    assert "the window over time" in shown.stdout and "####" in shown.stdout
    line = re.search(r'python -c "(import saturate; .*)"', shown.stdout)[1]
    read = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60)
    assert read.returncode == 0 and "summary" in read.stdout


def test_the_demo_runs_against_a_server_of_the_users(tmp_path):
    with Simulator(latency_s=0.01) as server:
        shown = saturate(
            "demo", "--endpoint", server.endpoint, "--model", "m", "--rows", "80", "--output", str(tmp_path / "out")
        )
        assert shown.returncode == 0, shown.stderr
        assert "SIMULATED" not in shown.stdout
        assert figures(shown.stdout)["lost"] == 0
        assert len(set(server.received)) == 80


def test_the_demo_says_what_is_wrong_with_its_arguments(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for arguments, message in (
        (["--model", "m"], "--endpoint and --model go together"),
        (["--rows", "0"], "--rows must be at least 1"),
        (["--output", str(tmp_path / "full")], "is not empty"),
    ):
        shown = saturate("demo", *arguments)
        assert shown.returncode == 2 and message in shown.stderr


def test_simulate_is_mounted_and_says_where_it_serves():
    process = subprocess.Popen(
        [sys.executable, "-m", "saturate.cli", "simulate", "--port", "0", "--latency-s", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        ready = process.stdout.readline()
        assert re.match(r"saturate simulate: serving on http://127\.0\.0\.1:\d+/v1 \(a simulation", ready)
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_version_and_help_are_quick_facts():
    assert saturate("--version").stdout.startswith("saturate ")
    shown = saturate("--help").stdout
    assert "simulate" in shown and "demo" in shown


def test_demo_telemetry_is_one_json_object_a_line(tmp_path):
    saturate("demo", "--rows", "60", "--output", str(tmp_path / "out"))
    [telemetry] = (tmp_path / "out").glob("telemetry-*.jsonl")
    assert all(json.loads(line)["limit"] >= 1 for line in telemetry.read_text().splitlines())
