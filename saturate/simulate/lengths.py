"""How long an answer is, in tokens. Pure, and a function of the request: the same request gets the same length twice.

A length is written as text, on the command line and in Python alike: ``100``, ``uniform:LOW,HIGH``,
``lognormal:MEDIAN,SIGMA`` (sigma of the logarithm) or ``bimodal:SHORT,LONG,SHARE`` (SHARE of the answers are LONG).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Union

_ARITY = {"fixed": 1, "uniform": 2, "lognormal": 2, "bimodal": 3}
LONGEST = 1_000_000  # a log-normal tail must not become an answer that nobody can hold


@dataclass(frozen=True)
class Lengths:
    """A distribution of answer lengths."""

    shape: str
    numbers: tuple[float, ...]

    @classmethod
    def read(cls, text: Union[str, int, Lengths]) -> Lengths:
        """Read the notation above. ValueError says what is wrong with it."""
        if isinstance(text, Lengths):
            return text
        shape, colon, rest = str(text).partition(":")
        if not colon:
            shape, rest = "fixed", shape
        try:
            numbers = tuple(float(part) for part in rest.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != _ARITY.get(shape, -1) or not all(math.isfinite(n) and n >= 0 for n in numbers):
            raise ValueError(
                f"tokens={text!r}: pass a number, uniform:LOW,HIGH, lognormal:MEDIAN,SIGMA or bimodal:SHORT,LONG,SHARE"
            )
        return cls(shape, numbers)

    @property
    def fixed(self) -> bool:
        return self.shape == "fixed"

    def draw(self, key: str) -> int:
        """The length for the request `key`, at least 1."""
        if self.shape == "fixed":
            return max(1, int(self.numbers[0]))
        rng = random.Random(key)
        if self.shape == "uniform":
            length = rng.uniform(*self.numbers)
        elif self.shape == "lognormal":
            median, sigma = self.numbers
            length = median * math.exp(rng.gauss(0.0, sigma))
        else:
            short, long, share = self.numbers
            length = long if rng.random() < share else short
        return max(1, min(LONGEST, round(length)))
