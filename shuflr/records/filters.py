"""What `convert` keeps: a random part, records within an entropy range, the first so many. In that order."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.errors import InputError


class Filter(NamedTuple):
    """sample_rate: chance in [0, 1] that a record is drawn; entropies: bits a byte, in [0, 8]; limit: records kept."""

    sample_rate: Optional[float] = None
    min_entropy: Optional[float] = None
    max_entropy: Optional[float] = None
    limit: Optional[int] = None

    @property
    def active(self) -> bool:
        return any(value is not None for value in self)


def filtered(blocks: "Iterable[memoryview | bytearray]", rules: Filter, key: bytes) -> Iterator[memoryview]:
    """The records of blocks of whole records that the rules keep; `key` is that of the draws, one u64 a record."""
    rate = rules.sample_rate
    for name, value, most in (
        ("sample rate", rate, 1), ("entropy", rules.min_entropy, 8), ("entropy", rules.max_entropy, 8),
    ):  # fmt: skip
        if value is not None and not 0 <= value <= most:
            raise InputError(f"{name} must be 0 to {most}, not {value}")
    state = ffi.new("shuflr_filter *")
    lib.shuflr_rng_init(ffi.addressof(state, "rng"), key, 0)
    state.sampled = rate is not None and rate < 1  # at 1 every record is kept and nothing is drawn
    state.threshold = int((rate or 0) * 2.0**64) if state.sampled else 0
    state.gated = rules.min_entropy is not None or rules.max_entropy is not None
    state.min_entropy = (rules.min_entropy or 0) * math.log(2)
    state.max_entropy = (8 if rules.max_entropy is None else rules.max_entropy) * math.log(2)
    state.limit = core.UNBOUNDED if rules.limit is None else rules.limit
    out, size = bytearray(), ffi.new("size_t *")
    for block in blocks:
        if state.kept >= state.limit:
            return
        if len(out) < len(block):
            out = bytearray(len(block))
        core.check(lib.shuflr_filter_run(state, core.pointer(block), len(block), core.pointer(out), size))
        if size[0]:
            yield memoryview(out)[: size[0]]
