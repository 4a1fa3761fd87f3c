"""The grid: servers that operators meet, one axis at a time, each with and without gauges where it matters.

A family is a function; a scenario's name says its place on every axis. Each run is long enough to deliver
600 rows and to turn a good window over 40 times, since in less there is nothing to learn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from plant import Bimodal, Constant, Curve, Falling, Lognormal, Points, Saturating, Server, Sorted

MEAN = 200.0                                        # tokens a row
BOTH = ("full", "none")


def long_enough(s: Server) -> Server:
    """`s` with a run that is long enough for what it can deliver."""
    top = min(1024, s.seats or 1024, s.cap or 1024)
    speed = {n: s.curve(n) for n in {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, top} if n <= top}
    best = min(n for n, v in speed.items() if v >= 0.9 * max(speed.values()))
    rows_s = speed[best] / MEAN
    if s.source is not None:
        rows_s = min(rows_s, s.source)
    return replace(s, seconds=2.0 * math.ceil(max(200.0, 600 / rows_s, 40 * best / rows_s) / 2))


def _server(name: str, curve: Curve, **more: object) -> Server:
    more.setdefault("length", Lognormal(MEAN, 0.4))
    s = Server(name=name, curve=curve, **more)                                       # type: ignore[arg-type]
    return s if "seconds" in more else long_enough(s)


def _one(service_s: float) -> float:
    """Tokens a second of a row that has the server to itself for `service_s`."""
    return MEAN / service_s


def _half_points() -> Iterator[Server]:
    for half in (1, 4, 16, 64, 256):
        for service in (0.05, 1.0, 10.0, 60.0):
            for gauges in BOTH:
                if service == 0.05 and half > 16:
                    continue                        # over 1,000 rows/s: not a window's business
                yield _server(f"half{half}-{service:g}s-{gauges}", Saturating(_one(service), half), gauges=gauges)


def _seats() -> Iterator[Server]:
    for seats in (1, 3, 12, 48, 200, 700):
        for service in (0.3, 5.0, 40.0):
            curve = Saturating(_one(service), 4 * seats)
            yield _server(f"seats{seats}-{service:g}s-none", curve, seats=seats, gauges="none")
    for seats in (3, 48, 700):
        yield _server(f"seats{seats}-5s-full", Saturating(_one(5.0), 4 * seats), seats=seats)


def _caps() -> Iterator[Server]:
    for cap in (1, 2, 6, 40, 150, 600, 1024):
        for service in (0.5, 6.0):
            yield _server(f"cap{cap}-{service:g}s-429", Saturating(_one(service), 2 * cap), cap=cap, gauges="none")
    for cap in (6, 40, 600):
        for wait in (1.0, 8.0):
            curve = Saturating(_one(3.0), 2 * cap)
            yield _server(f"cap{cap}-retry{wait:g}", curve, cap=cap, retry_after=wait, gauges="none")


def _lengths() -> Iterator[Server]:
    kinds = {"constant": Constant(MEAN), "lognormal1.2": Lognormal(MEAN, 1.2), "bimodal": Bimodal(MEAN),
             "rising": Sorted(60.0, 340.0, 3000), "sinking": Sorted(340.0, 60.0, 3000)}
    for kind, length in kinds.items():
        for gauges in BOTH:
            curve = Saturating(_one(4.0), 48)
            yield _server(f"{kind}-{gauges}", curve, length=length, seats=160, gauges=gauges, seconds=600.0)


def _memory() -> Iterator[Server]:
    for tokens in (2_000, 12_000, 60_000):
        for gauges in BOTH:
            yield _server(f"kv{tokens}-{gauges}", Saturating(_one(4.0), 64), kv=float(tokens), gauges=gauges,
                          length=Lognormal(MEAN, 0.6), seconds=600.0)


def _knees() -> Iterator[Server]:
    for knee in (12, 48, 180):
        for fall in (0.15, 0.25, 0.4):
            for gauges in BOTH:
                curve = Falling(_one(3.0), knee, knee, fall)
                yield _server(f"knee{knee}-fall{fall:g}-{gauges}", curve, gauges=gauges, seconds=600.0)


def _plateaus() -> Iterator[Server]:
    shapes = {
        "stairs": Points(((1, 100), (8, 700), (14, 720), (24, 1500), (48, 1560), (96, 3000), (1024, 3050))),
        "plateau24": Points(((1, 100), (12, 1000), (24, 1060), (96, 3200), (1024, 3300))),
        "plateau64": Points(((1, 100), (48, 2400), (90, 2550), (200, 5600), (1024, 5700))),
        "steps": Points(((1, 60), (4, 200), (5, 205), (16, 600), (17, 620), (64, 1900), (1024, 1950))),
    }
    for name, curve in shapes.items():
        for gauges in BOTH:
            yield _server(f"{name}-{gauges}", curve, gauges=gauges, seconds=600.0)


def _phases() -> Iterator[Server]:
    quarter, four = ((0.0, 1.0, 1.0), (300.0, 1.0, 0.25)), ((0.0, 1.0, 0.25), (300.0, 1.0, 1.0))
    slow = ((0.0, 1.0, 1.0), (200.0, 0.25, 1.0), (500.0, 1.0, 1.0))
    for gauges in BOTH:
        for name, phases in (("seats/4", quarter), ("seatsx4", four), ("speed/4x4", slow)):
            curve = Saturating(_one(4.0), 400)
            yield _server(f"{name}-{gauges}", curve, seats=128, phases=phases, gauges=gauges, seconds=800.0)
    yield _server("cap/4-429", Saturating(_one(3.0), 300), cap=128, phases=quarter, gauges="none", seconds=800.0)
    yield _server("capx4-429", Saturating(_one(3.0), 300), cap=128, phases=four, gauges="none", seconds=800.0)


def _gateways() -> Iterator[Server]:
    for seats in (8, 100):
        for patience in (10.0, 60.0):
            yield _server(f"gateway{patience:g}s-seats{seats}", Saturating(_one(4.0), 2 * seats), seats=seats,
                          patience=patience, gauges="none", seconds=600.0)


def _odd() -> Iterator[Server]:
    base = Saturating(_one(4.0), 200)
    for gauges in ("undercount", "replica", "shared"):
        for seats in (20, 150):
            yield _server(f"{gauges}-seats{seats}", base, seats=seats, gauges=gauges, seconds=600.0)
    for gauges in BOTH:
        yield _server(f"source2-{gauges}", base, seats=150, source=2.0, gauges=gauges, seconds=600.0)
        yield _server(f"source15-{gauges}", base, seats=150, source=15.0, gauges=gauges, seconds=600.0)
        yield _server(f"no-usage-{gauges}", base, seats=150, usage=False, gauges=gauges, seconds=600.0)
        yield _server(f"flaky2%-{gauges}", base, seats=150, flaky=0.02, gauges=gauges, seconds=600.0)
        yield _server(f"prefill-{gauges}", base, seats=96, prompt=2000.0, prompt_s=0.12, gauges=gauges, seconds=800.0)
        batches = Saturating(_one(1.0), 32)
        yield _server(f"batch64-{gauges}", batches, batch=True, seats=64, gauges=gauges, seconds=600.0)
    yield _server("no-usage-slow", Saturating(_one(30.0), 60), usage=False, gauges="none")


FAMILIES = (_half_points, _seats, _caps, _lengths, _memory, _knees, _plateaus, _phases, _gateways, _odd)
GRID: list[Server] = [server for family in FAMILIES for server in family()]
