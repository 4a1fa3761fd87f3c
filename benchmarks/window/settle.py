"""How soon the window controller settles and follows a step: python benchmarks/window/settle.py [--seeds N]

A line per case, the median over its seeds. A service time is how long a row stays in the server at the smallest good
window. Settled is the first moment from which five ticks (or one service time) deliver 95 % of what that window, fixed
from the start, delivers in the same seconds: a server that starts empty is nobody's loss. Down is the first moment
from which the window stays, for as long, within twice the smallest good one.

Allowed: 8 service times without gauges, 15 s and one service time with them; after a capacity step, 8 service times of
the slower of the two. A cap that is lifted without a word is noticed by trying: 64 service times.
Exits 1 when a case takes longer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Optional

import plant
from scenarios import MEAN
from sweeps import best_fixed

from saturate.flow.controller import Auto

TIMES = 8.0
SEEN_S = 15.0
LIFTED_TIMES = 64.0
SHARE = 0.95
TWICE = 2.0
TICKS = 5


@dataclass(frozen=True)
class Case:
    """`down`: the window is what must settle, not the rate. `step_s`: when `phases` changes the server."""

    what: str
    server: plant.Server
    start: int = 16
    down: bool = False
    step_s: float = 0.0
    times: Optional[float] = None


def _server(name: str, service_s: float, half: float, gauges: str, **more: Any) -> plant.Server:
    more.setdefault("length", plant.Lognormal(MEAN, 0.4))
    more.setdefault("curve", plant.Saturating(MEAN / service_s, half))
    return plant.Server(name=f"{name}-{gauges}", gauges=gauges, **more)


def cases() -> Iterator[Case]:
    for gauges in ("full", "none"):
        seats40 = _server("seats40", 4.0, 160, gauges, seats=40)
        yield Case("settles", seats40)
        yield Case("settles", _server("seats12-20s", 20.0, 48, gauges, seats=12))
        yield Case("settles", _server("seats200-20s", 20.0, 800, gauges, seats=200))
        yield Case("settles", _server("half64-10s", 10.0, 64, gauges))
        yield Case("settles", _server("tail1.2", 4.0, 160, gauges, seats=96, length=plant.Lognormal(MEAN, 1.2)))
        yield Case("settles", _server("constant", 4.0, 160, gauges, seats=96, length=plant.Constant(MEAN)))
        yield Case("settles", _server("kv12000", 4.0, 64, gauges, kv=12_000.0))
        yield Case("settles", _server("knee48", 3.0, 48, gauges, curve=plant.Falling(MEAN / 3, 48, 48, 0.25)))
        for start in (150, 400, 1000):
            yield Case("comes down", seats40, start, down=True)
        yield Case("comes down", _server("seats12-20s", 20.0, 48, gauges, seats=12), 200, down=True)
        seats128 = _server("seats128", 4.0, 512, gauges, seats=128)
        for step_s in (120.0, 400.0):
            down, up = ((0.0, 1.0, 1.0), (step_s, 1.0, 0.25)), ((0.0, 1.0, 0.25), (step_s, 1.0, 1.0))
            yield Case("follows x1/4", replace(seats128, phases=down), down=True, step_s=step_s)
            yield Case("follows x4", replace(seats128, phases=up), step_s=step_s)
            slower, faster = ((0.0, 1.0, 1.0), (step_s, 0.25, 1.0)), ((0.0, 0.25, 1.0), (step_s, 1.0, 1.0))
            yield Case("speed x1/4", replace(seats128, phases=slower), step_s=step_s)
            yield Case("speed x4", replace(seats128, phases=faster), step_s=step_s)
    cap = _server("cap40", 3.0, 300, "none", cap=128)
    for step_s in (120.0, 400.0):
        lifted, cut = ((0.0, 1.0, 0.25), (step_s, 1.0, 1.0)), ((0.0, 1.0, 1.0), (step_s, 1.0, 0.25))
        yield Case("cap x1/4", replace(cap, phases=cut), down=True, step_s=step_s)
        yield Case("cap lifted x4", replace(cap, phases=lifted), step_s=step_s, times=LIFTED_TIMES)


class Watched:
    """A fixed window whose run keeps its trace: the plant asks `Hold` nothing."""

    last_reason = "hold"

    def __init__(self, n: int) -> None:
        self.initial = n

    def decide(self, obs: Any, limit: int) -> int:
        return self.initial


@dataclass(frozen=True)
class Best:
    window: int
    service_s: float


def steady(server: plant.Server, phase: int, cache: Optional[str]) -> Best:
    """The smallest good window of `server` were it for ever as in that phase of its own."""
    seconds = 600.0
    if server.phases:
        _, speed, seats = server.phases[phase]
        server = replace(server, phases=((0.0, speed, seats),))
    server = replace(server, seconds=seconds)
    values = best_fixed(server, cache)
    window = plant.smallest_good(values)
    trace = plant.simulate(server, Watched(window)).trace
    rates = [rate for t, _, rate, _ in trace if t > seconds / 2]
    return Best(window, window * (MEAN + server.prompt) / statistics.mean(rates))


def took(case: Case, server: plant.Server, best: Best) -> float:
    """Seconds from the step (or the start) until settled; inf when never."""
    held = max(TICKS, round(best.service_s / plant.TICK_S))
    run, fixed = plant.simulate(server, Auto(initial=case.start)), plant.simulate(server, Watched(best.window))
    after = [
        (t, window, rate, wanted)
        for (t, window, rate, _), (_, _, wanted, _) in zip(run.trace, fixed.trace)
        if t > case.step_s
    ]
    for i in range(len(after) - held + 1):
        ticks = after[i : i + held]
        if case.down:
            good = max(window for _, window, _, _ in ticks) <= TWICE * best.window
        else:
            wanted = sum(fixed for _, _, _, fixed in ticks)
            good = wanted > 0 and sum(rate for _, _, rate, _ in ticks) >= SHARE * wanted
        if good:
            return ticks[0][0] - case.step_s
    return float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--cache", type=os.path.abspath, help="directory that keeps the sweeps of fixed windows")
    arguments = parser.parse_args()
    print("| case | server | start | good window | service time | allowed | took | slowest seed | |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---|")
    late = 0
    for case in cases():
        name = f"{case.what} {case.server.name}"
        if arguments.only not in name:
            continue
        before, best = steady(case.server, 0, arguments.cache), steady(case.server, -1, arguments.cache)
        service_s = max(before.service_s, best.service_s)
        seen = case.server.gauges == "full" and not case.step_s
        allowed = SEEN_S + service_s if seen else (case.times or TIMES) * service_s
        seconds = case.step_s + max(allowed, 20 * service_s) * 2
        times = sorted(
            took(case, replace(case.server, seconds=seconds, seed=1 + k), best)
            for k in range(arguments.seeds)
        )
        median = statistics.median(times)
        verdict = "" if median <= allowed + plant.TICK_S else "late"
        late += bool(verdict)
        what = f"{case.what} after {case.step_s:.0f} s" if case.step_s else case.what
        print(f"| {what} | {case.server.name} | {case.start} | {best.window} | {service_s:.1f} s | {allowed:.0f} s"
              f" | {median:.0f} s | {times[-1]:.0f} s | {verdict} |", flush=True)
    print(f"\n{'all in time' if not late else f'{late} late'}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
