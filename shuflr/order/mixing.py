"""Which of several sources gives the next record, so that each keeps to its weight. Pure.

After n records a source of weight w (a share of 1) has given more than n·w − 1 and less than n·w + 1, for every n and
every source: no draw, so no drift. It is the schedule of Tijdeman's chairman assignment: a source may give its next
record once it is 1/(2k−2) behind its share, and of those that may, the one goes first that would otherwise be the first
to fall 1 − 1/(2k−2) behind. Integers throughout, so it is the same on every machine.
"""

import heapq
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import gcd

from shuflr.errors import InputError

_DIGITS = 10**9


def shares(weights: "Mapping[str, float]") -> "dict[str, int]":
    """The weights above zero as whole numbers without a common divisor, taken to nine digits behind the point.

    Raises InputError for a weight that is negative or no number, and when none is above zero."""
    exact = {}
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise InputError(f"the weight of {name!r} is a number from 0 on, not {weight!r}")
        exact[name] = Fraction(weight).limit_denominator(_DIGITS)
    scale = 1
    for fraction in exact.values():
        scale = scale * fraction.denominator // gcd(scale, fraction.denominator)
    whole = {name: int(fraction * scale) for name, fraction in exact.items() if fraction}
    if not whole:
        raise InputError("at least one source of a mix has a weight above 0")
    divisor = gcd(*whole.values()) if len(whole) > 1 else next(iter(whole.values()))
    return {name: share // divisor for name, share in whole.items()}


def turns(parts: "Mapping[str, int]", given: "Mapping[str, int]") -> Iterator[str]:
    """The names in the order in which they give, for ever, behind the records that each has given so far.

    parts: shares as `shares` makes them. given: their counts, as a schedule of these parts left them."""
    whole = sum(parts.values())
    names = sorted(parts)
    if len(names) == 1:
        while True:
            yield names[0]
    step = 2 * len(names) - 2
    n = sum(given.get(name, 0) for name in names)

    def release(name: str, count: int) -> int:
        # the first n with  n·part/whole − count ≥ 1/step
        return -(-(count * step + 1) * whole // (step * parts[name]))

    def deadline(name: str, count: int) -> int:
        # the last n with  n·part/whole − count ≤ 1 − 1/step
        return (count * step + step - 1) * whole // (step * parts[name])

    waiting = [(release(name, given.get(name, 0)), name, given.get(name, 0)) for name in names]
    heapq.heapify(waiting)
    ready: list[tuple[int, str, int]] = []
    while True:
        n += 1
        while waiting and waiting[0][0] <= n:
            _, name, count = heapq.heappop(waiting)
            heapq.heappush(ready, (deadline(name, count), name, count))
        _, name, count = heapq.heappop(ready)
        heapq.heappush(waiting, (release(name, count + 1), name, count + 1))
        yield name
