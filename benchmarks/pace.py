"""A hosted API with a quota, and how much of it is used.

    python benchmarks/pace.py            every way to know a quota, with Auto() and Fixed(64): about four minutes
    python benchmarks/pace.py --short    a quota ten times as large, a few of the ways: about twenty seconds

Each variant is a simulated API (`saturate simulate`, a token bucket in a process of its own) and a client in another
process that sends as many rows as it may. All variants run at once. The quota is told (`Pace`), read from headers
(`x-ratelimit-*`, `ratelimit-*`), or learned from Retry-After alone: whole seconds, fractions, dates. Counted are the
seconds after the first minute: at most 1 % of the requests may get a 429, and at least 97 % of the quota must be used.
Prints a table; the exit status is 1 when a variant falls short.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from saturate import AdaptiveClient, Auto, Fixed, through
from saturate.flow.pacer import Pace

TOLD = "told, Pace(...)"
WAYS = {
    TOLD: "headers=none",
    "x-ratelimit headers": "headers=x-ratelimit",
    "ratelimit headers": "headers=ratelimit",
    "Retry-After: seconds": "headers=none",
    "Retry-After: fractions": "headers=none,retry_after=auto-fraction",
    "Retry-After: a date": "headers=none,retry_after=auto-date",
}
WINDOWS = {"Auto()": Auto, "Fixed(64)": lambda: Fixed(64)}


@dataclass(frozen=True)
class Plan:
    """What is run: a quota, how long it is learned, how long it is measured, and what must come out."""

    per_minute: int
    learn_s: float
    measure_s: float
    refused_at_most: float
    used_at_least: float


FULL = Plan(600, 60.0, 130.0, 0.01, 0.97)
SHORT = Plan(6000, 9.0, 8.0, 0.03, 0.85)
SHORT_VARIANTS = ((TOLD, "Fixed(64)"), ("x-ratelimit headers", "Fixed(64)"), ("Retry-After: seconds", "Fixed(64)"))


def measure(way: str, window: str, plan: Plan) -> dict[str, Any]:
    """One variant: the shares of requests refused and of the quota used after the time to learn."""
    burst = "burst=1.0" if plan is FULL else "burst=0.1"
    fault = f"quota:per_minute={plan.per_minute},{burst},{WAYS[way]}"
    command = [
        sys.executable,
        "-m",
        "saturate.simulate",
        "--port=0",
        "--latency-s=0.2",
        "--no-metrics",
        "--fault",
        fault,
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        return _drive(endpoint, way, window, plan)
    finally:
        server.terminate()
        server.wait()


def _drive(endpoint: str, way: str, window: str, plan: Plan) -> dict[str, Any]:
    pace = Pace(plan.per_minute) if way == TOLD else None
    client = AdaptiveClient(endpoint, WINDOWS[window](), signal_source="none", pace=pace)
    started = time.monotonic()
    end = started + plan.learn_s + plan.measure_s
    before: Optional[tuple[float, int, int]] = None
    with client, through(client, _rows(), _chat, lambda response: {}) as results:
        for _ in results:
            now = time.monotonic()
            if before is None and now >= started + plan.learn_s:
                before = (now, *_counts(endpoint))
            if now >= end:
                break
        assert before is not None
        now, ok, refused = time.monotonic(), *_counts(endpoint)
    seconds, ok, refused = now - before[0], ok - before[1], refused - before[2]
    return {
        "refused": refused / max(1, ok + refused),
        "used": ok / (plan.per_minute * seconds / 60),
        "first": before[2] / max(1, before[1] + before[2]),
        "rpm": client.limiter.pace_rpm,
        "window": client.limiter.window.limit,
    }


def _rows() -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    while True:
        yield str(number), {"number": number}
        number += 1


def _chat(row: dict[str, Any]) -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": f"row {row['number']}"}], "max_tokens": 4}


def _counts(endpoint: str) -> tuple[int, int]:
    """(answers, refusals) that the server has given."""
    with urllib.request.urlopen(endpoint.replace("/v1", "/simulate/stats"), timeout=10) as answer:
        statuses = json.load(answer)["statuses"]
    return statuses.get("200", 0), statuses.get("429", 0)


def _run_all(variants: list[tuple[str, str]], plan: Plan, short: bool) -> list[dict[str, Any]]:
    """Every variant in a process of its own, all at once."""
    flags = ["--short"] if short else []
    processes = [
        subprocess.Popen([sys.executable, __file__, *flags, "--one", way, window], stdout=subprocess.PIPE, text=True)
        for way, window in variants
    ]
    results = []
    for process in processes:
        output, _ = process.communicate(timeout=plan.learn_s + plan.measure_s + 120)
        results.append(json.loads(output) if process.returncode == 0 else {})
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="about twenty seconds, looser figures")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "WINDOW"), help="one variant, as JSON on standard output")
    arguments = parser.parse_args()
    plan = SHORT if arguments.short else FULL
    if arguments.one:
        print(json.dumps(measure(*arguments.one, plan)))
        return 0
    variants = list(SHORT_VARIANTS) if arguments.short else [(way, window) for way in WAYS for window in WINDOWS]
    results = _run_all(variants, plan, arguments.short)
    print(f"{plan.per_minute} requests a minute; figures from second {plan.learn_s:.0f} on, {plan.measure_s:.0f} s")
    print(f"{'known from':<24}{'window':<11}{'429s':>7}{'used':>8}{'429s before':>13}{'pace':>8}{'window':>8}")
    good = True
    for (way, window), result in zip(variants, results):
        if not result:
            print(f"{way:<24}{window:<11}  failed")
            good = False
            continue
        ok = result["refused"] <= plan.refused_at_most and result["used"] >= plan.used_at_least
        good = good and ok
        print(
            f"{way:<24}{window:<11}{result['refused']:>7.2%}{result['used']:>8.1%}{result['first']:>13.1%}"
            f"{result['rpm'] or 0:>8.0f}{result['window']:>8}{'' if ok else '   falls short'}"
        )
    print(f"required: 429s <= {plan.refused_at_most:.0%}, used >= {plan.used_at_least:.0%}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
