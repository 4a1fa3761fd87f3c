"""Score the public `saturate` package's Auto on the grid; run by the interpreter that has it, by score.py --peer.

Prints one JSON object: delivered by scenario. Its client sleeps inside its slot, so the plant does too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace

import plant
from holdout import HOLDOUT
from scenarios import GRID
from sweeps import best_fixed

from saturate import Auto


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--cache")
    args = parser.parse_args()
    delivered = {}
    for server in HOLDOUT if args.holdout else GRID:
        if args.only in server.name:
            seeded = [replace(server, seed=server.seed + 1000 * k) for k in range(args.seeds)]
            delivered[server.name] = statistics.mean(
                min(1.0, plant.simulate(s, Auto(), hold_slot=True).value / max(best_fixed(s, args.cache).values()))
                for s in seeded)
    json.dump(delivered, sys.stdout)


if __name__ == "__main__":
    main()
