"""Servers nobody tuned on: drawn at random, by one seed, from the ranges that the grid walks axis by axis.

`score.py --holdout` scores them in place of the grid; `--draw SEED` draws as many others.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from plant import Bimodal, Constant, Curve, Falling, Length, Lognormal, Points, Saturating, Server, Sorted
from scenarios import MEAN, long_enough

COUNT = 48
SEED = 20240607


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _curve(rng: random.Random, one: float) -> Curve:
    kind = rng.choice(["saturating", "saturating", "saturating", "falling", "plateau"])
    half = _log_uniform(rng, 1, 256)
    if kind == "falling":
        return Falling(one, half, round(_log_uniform(rng, 12, 256)), rng.uniform(0.1, 0.4))
    if kind == "plateau":
        foot, wide, top = round(_log_uniform(rng, 8, 64)), rng.uniform(1.5, 2.5), rng.uniform(3.0, 6.0)
        speed = one * foot * 0.8
        return Points(((1, one), (foot, speed), (round(foot * wide), 1.08 * speed),
                       (round(foot * wide * top), 0.8 * top * speed), (1024, 0.82 * top * speed)))
    return Saturating(one, half)


def _length(rng: random.Random) -> Length:
    return rng.choice([Constant(MEAN), Lognormal(MEAN, rng.uniform(0.2, 1.2)), Lognormal(MEAN, 0.4), Bimodal(MEAN),
                       Sorted(80.0, 320.0, 2000), Sorted(320.0, 80.0, 2000)])


def _limits(rng: random.Random) -> dict[str, Any]:
    """What holds requests up or turns them away."""
    size = round(_log_uniform(rng, 1, 1024))
    patience = rng.uniform(10.0, 60.0)
    return rng.choice([
        {}, {"seats": size}, {"seats": size}, {"cap": size}, {"cap": size, "retry_after": rng.uniform(1.0, 8.0)},
        {"kv": _log_uniform(rng, 2_000, 100_000)}, {"seats": size, "patience": patience}])


def _draw(rng: random.Random, number: int) -> Server:
    one = MEAN / _log_uniform(rng, 0.2, 60.0)
    limits = _limits(rng)
    refusing = "cap" in limits or "patience" in limits
    gauges = "none" if refusing else rng.choice(["full", "full", "none", "none", "undercount", "replica"])
    server = Server(
        name=f"random{number:02d}-{'-'.join(limits) or 'open'}-{gauges}", curve=_curve(rng, one), length=_length(rng),
        gauges=gauges, usage=rng.random() > 0.15, seed=number + 1, **limits)
    server = long_enough(server)
    if "seats" in limits and rng.random() < 0.3:            # a capacity step in the middle
        before, after = rng.choice([(1.0, 0.25), (0.25, 1.0)])
        phases = ((0.0, 1.0, before), (server.seconds, 1.0, after))
        server = replace(server, name=server.name + "-step", phases=phases, seconds=2 * server.seconds)
    return server


def drawn(seed: int) -> list[Server]:
    rng = random.Random(seed)
    return [_draw(rng, number) for number in range(COUNT)]


HOLDOUT: list[Server] = drawn(SEED)
