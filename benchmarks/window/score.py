"""Score the window controller on the grid: python benchmarks/window/score.py [--seeds N] [--only TEXT] [--peer]

A line per scenario, the mean over its seeds, and last the figures that count:

    delivered   tokens, less the share of lost rows, over what the best fixed window delivered; at most 1
    in flight   mean requests in flight over the smallest window within 1 % of the best (or 16, the start)
    refused     refused and timed-out requests over all that were sent

Exits 1 when the grid falls short: mean delivered below 0.96 or the worst scenario below 0.85.
With --peer a second column scores the public `saturate` package's `Auto`, run by the interpreter that has it
(--peer-python); that client sleeps inside its slot, so it runs with `hold_slot`. --markdown writes the table.
Sweeping every fixed window costs far more than the runs themselves: --cache keeps the sweeps in a directory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Optional

import plant
from holdout import HOLDOUT, drawn
from scenarios import GRID
from sweeps import best_fixed

from saturate.flow.controller import Auto

MEAN, WORST = 0.96, 0.85                       # the grid's pass mark
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Line:
    name: str
    best: float
    delivered: float
    least: float
    in_flight: float
    refused: float
    final: float
    peer: Optional[float] = None


def score(server: plant.Server, seeds: int, cache: Optional[str]) -> Line:
    best, delivered, in_flight, refused, final = [], [], [], [], []
    for k in range(seeds):
        s = replace(server, seed=server.seed + 1000 * k)
        fixed = best_fixed(s, cache)
        run = plant.simulate(s, Auto())
        best.append(plant.smallest_good(fixed))
        delivered.append(min(1.0, run.value / max(fixed.values())))
        in_flight.append(run.mean_inflight / max(best[-1], 16))
        refused.append(run.refused / max(1, run.rows + run.refused))
        final.append(run.trace[-1][1])
    mean = statistics.mean
    return Line(server.name, statistics.median(best), mean(delivered), min(delivered), mean(in_flight),
                mean(refused), statistics.median(final))


def peer_column(args: argparse.Namespace) -> dict[str, float]:
    """Delivered by scenario, of the public package's Auto in its own interpreter."""
    command = [args.peer_python, os.path.join(HERE, "peer.py"), "--seeds", str(args.seeds), "--only", args.only]
    command += ["--holdout"] if args.holdout else []
    command += ["--cache", args.cache] if args.cache else []
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=HERE).stdout
    delivered: dict[str, float] = json.loads(out)
    return delivered


def summary(lines: list[Line]) -> str:
    text = (f"{len(lines)} scenarios: mean {statistics.mean(x.delivered for x in lines):.3f}"
            f" worst {min(x.delivered for x in lines):.3f}"
            f" in flight median {statistics.median(x.in_flight for x in lines):.2f}"
            f" worst {max(x.in_flight for x in lines):.2f}"
            f" refused worst {max(x.refused for x in lines):.1%}")
    peers = [x.peer for x in lines if x.peer is not None]
    return text + (f"; public package: mean {statistics.mean(peers):.3f} worst {min(peers):.3f}" if peers else "")


def markdown(lines: list[Line], seeds: int) -> str:
    head = ["scenario", "best window", "delivered", "worst seed", "in flight", "refused", "last window",
            "saturate 0.2.0"]
    rows = [[x.name, f"{x.best:.0f}", f"{x.delivered:.3f}", f"{x.least:.3f}", f"{x.in_flight:.2f}",
             f"{x.refused:.1%}", f"{x.final:.0f}", "" if x.peer is None else f"{x.peer:.3f}"] for x in lines]
    table = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] + ["---:"] * (len(head) - 1)] + rows]
    lead = ["# The window found, against every fixed window", "",
            "Written by `python benchmarks/window/score.py --peer --markdown FILE`; its `--help` says what the columns",
            "mean.", "", f"{summary(lines)} ({seeds} seed{'s' if seeds > 1 else ''}).", ""]
    return "\n".join([*lead, *table, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--holdout", action="store_true", help="score the random servers of holdout.py instead")
    parser.add_argument("--draw", type=int, metavar="SEED", help="or others, drawn with this seed (without --peer)")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--cache", type=os.path.abspath, help="directory that keeps the sweeps of fixed windows")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with saturate==0.2.0 installed")
    parser.add_argument("--markdown", metavar="FILE")
    args = parser.parse_args()
    if args.draw is not None and args.peer:
        parser.error("--peer scores the grid or --holdout, not --draw")
    servers = drawn(args.draw) if args.draw is not None else HOLDOUT if args.holdout else GRID
    peers = peer_column(args) if args.peer else {}
    lines = []
    for server in servers:
        if args.only in server.name:
            x = score(server, args.seeds, args.cache)
            x.peer = peers.get(x.name)
            lines.append(x)
            public = "" if x.peer is None else f"  public {x.peer:.3f}"
            print(f"{x.name:24s} best {x.best:5.0f}  delivered {x.delivered:.3f} ({x.least:.3f})"
                  f"  in flight {x.in_flight:5.2f}x  refused {x.refused:6.2%}  last {x.final:4.0f}{public}", flush=True)
    print(summary(lines))
    if args.markdown:
        with open(args.markdown, "w") as f:
            f.write(markdown(lines, args.seeds))
    short = statistics.mean(x.delivered for x in lines) < MEAN or min(x.delivered for x in lines) < WORST
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
