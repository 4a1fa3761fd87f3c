"""Does `pump` with `Auto` deliver, in real time, what the best fixed window delivers?

    python benchmarks/adaptive.py [--rows 4500] [--short]

A simulated engine (64 sequences at once, 100 tokens a request, 10 ms + 0.1 ms per running sequence a step: at most
39 requests a second) for each of several fixed windows, and for Auto with the engine's /metrics and without. All run
at the same time, each in processes of its own, so that whatever else the machine does hits all alike; together they
need a small part of a core. The best fixed window is the best of them on rows a second over the whole run, ramp
included. Exits 1 when Auto delivers less than 0.95 of it, with metrics or without.

`--short`: 1,200 rows and 0.70, since the ramp of a few seconds then weighs four times as much.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIXED = (16, 32, 48, 64, 96, 128, 256)
ENGINE = ("--max-num-seqs", "64", "--step-s", "0.010", "--per-seq-s", "0.0001", "--tokens", "100")
CEILING = 64 / (100 * (0.010 + 0.0001 * 64))

JOB = """
import json, sys, time
from saturate import Auto, Fixed, pump
setup = json.loads(sys.argv[1])
def to_request(row):
    return {"model": "m", "messages": [{"role": "user", "content": row["text"]}], "max_tokens": 100}
def parse(row, response):
    return {"answer": response["choices"][0]["message"]["content"]}
window = Fixed(setup["window"]) if setup["window"] else Auto()
started = time.monotonic()
stats = pump(({"text": f"row {i}"} for i in range(setup["rows"])), to_request, parse, setup["endpoint"],
             setup["output"], window=window, signal_source="auto" if setup["metrics"] else "none")
print(json.dumps({"seconds": time.monotonic() - started, "rows": stats.rows_processed, "final": stats.final_limit,
                  "hints": stats.hints}))
"""


class Variant:
    """One client with one engine of its own."""

    def __init__(self, name: str, window: int, metrics: bool, rows: int, folder: Path):
        self.name, self.window = name, window
        flags = () if metrics else ("--no-metrics",)
        self._engine = subprocess.Popen(
            [sys.executable, "-m", "saturate.simulate", "--port", "0", *ENGINE, *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        endpoint = self._engine.stdout.readline().split("serving on ")[1].split()[0]
        self._output = folder / name.replace(" ", "-")
        setup = {"window": window, "metrics": metrics, "rows": rows, "endpoint": endpoint, "output": str(self._output)}
        self._client = subprocess.Popen(
            [sys.executable, "-c", JOB, json.dumps(setup)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def finish(self) -> None:
        out, _ = self._client.communicate()
        self.result = json.loads(out.splitlines()[-1])
        self.rate = self.result["rows"] / self.result["seconds"]
        self._engine.terminate()
        self._engine.communicate()

    def windows(self) -> str:
        """The windows over time, one a change."""
        shown, last = [], None
        for path in sorted(self._output.glob("telemetry-*.jsonl")):
            for line in path.read_text().splitlines():
                tick = json.loads(line)
                if tick["limit"] != last:
                    last = tick["limit"]
                    shown.append(f"{tick['t']:.0f}s:{last}")
        return " ".join(shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4500)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    rows, required = (1200, 0.70) if arguments.short else (arguments.rows, 0.95)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        fixed = [Variant(f"Fixed {n}", n, True, rows, at) for n in ((48, 64, 96) if arguments.short else FIXED)]
        autos = [Variant("Auto gauges", 0, True, rows, at), Variant("Auto blind", 0, False, rows, at)]
        for variant in (*fixed, *autos):
            variant.finish()
        best = max(fixed, key=lambda v: v.rate)
        print(f"{rows} rows each, at the same time; the engine's ceiling is {CEILING:.1f} rows/s\n")
        print("| client | rows/s | of the best fixed | final window | windows over time |")
        print("|---|---|---|---|---|")
        for v in (*fixed, *autos):
            over_time = "" if v.window else v.windows()
            print(f"| {v.name} | {v.rate:.2f} | {v.rate / best.rate:.3f} | {v.result['final']} | {over_time} |")
    short = [v for v in autos if v.rate < required * best.rate]
    verdict = "falls short" if short else "met"
    print(f"\nrequired {required:.2f} of {best.name}: {verdict} ({time.monotonic() - started:.0f} s)")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
