"""What each engine's /metrics calls its numbers. Pure: Prometheus text in, one set of gauges out.

Sources: the engines' own metrics modules, as recorded from running servers. Values of several label sets
(replicas, models, data-parallel ranks) are summed for counts and counters; for ratios the highest is taken, since
the fullest replica is the one that refuses first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Callable, Optional


@dataclass(frozen=True)
class Gauges:
    """One reading. None where the engine does not say. Counters (`preempts`, `engine_tokens`) are cumulative."""

    dialect: str
    waiting: Optional[float] = None
    running: Optional[float] = None
    kv: Optional[float] = None
    hits: Optional[float] = None
    preempts: Optional[float] = None
    engine_tokens: Optional[float] = None

    def read_dict(self) -> dict[str, Optional[float]]:
        """The keys that a limiter's `signals.read()` returns."""
        return {
            "waiting": self.waiting,
            "running": self.running,
            "kv": self.kv,
            "hits": self.hits,
            "preempts": self.preempts,
            "engine_tokens": self.engine_tokens,
        }


Fold = Callable[[float, float], float]


def _sum(a: float, b: float) -> float:
    return a + b


# (metric name, field, how several samples combine). Field order of a dialect does not matter.
_NAMES: dict[str, tuple[str, str, Fold]] = {}


def _dialect(dialect: str, prefixes: tuple[str, ...], table: dict[str, tuple[str, Fold]]) -> None:
    for prefix in prefixes:
        for name, (field, fold) in table.items():
            _NAMES[prefix + name] = (dialect, field, fold)


_dialect(
    "vllm",
    ("vllm:", "vllm_"),
    {
        "num_requests_waiting": ("waiting", _sum),
        "num_requests_running": ("running", _sum),
        "gpu_cache_usage_perc": ("kv", max),
        "kv_cache_usage_perc": ("kv", max),
        "gpu_prefix_cache_hit_rate": ("hits", max),
        "num_preemptions_total": ("preempts", _sum),
        "prompt_tokens_total": ("engine_tokens", _sum),
        "generation_tokens_total": ("engine_tokens", _sum),
    },
)
_dialect(
    "sglang",
    ("sglang:", "sglang_"),
    {
        "num_queue_reqs": ("waiting", _sum),
        "num_running_reqs": ("running", _sum),
        "token_usage": ("kv", max),
        "cache_hit_rate": ("hits", max),
        "prompt_tokens_total": ("engine_tokens", _sum),
        "generation_tokens_total": ("engine_tokens", _sum),
    },
)
_dialect(
    "llamacpp",
    ("llamacpp:", "llamacpp_"),
    {
        "requests_deferred": ("waiting", _sum),
        "requests_processing": ("running", _sum),
        "prompt_tokens_total": ("engine_tokens", _sum),
        "tokens_predicted_total": ("engine_tokens", _sum),
    },
)
_dialect(
    "trtllm",
    ("trtllm_",),
    {"num_requests_waiting": ("waiting", _sum), "num_requests_running": ("running", _sum)},
)
_dialect("tei", ("te_", "te:"), {"queue_size": ("waiting", _sum)})

# One sample line: a name, labels in braces whose quoted values may hold anything (also "}"), a value.
_SAMPLE = re.compile(
    r"""^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
        (?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?
        [ \t]+(?P<value>[-+0-9.eEnNaAiIfF]+)""",
    re.VERBOSE | re.MULTILINE,
)


def parse(text: str) -> Optional[Gauges]:
    """The gauges in a Prometheus text page; None when it names none that we know. NaN and Inf are no reading."""
    values: dict[str, dict[str, float]] = {}
    for match in _SAMPLE.finditer(text):
        known = _NAMES.get(match["name"])
        if known is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        dialect, field, fold = known
        fields = values.setdefault(dialect, {})
        fields[field] = fold(fields[field], value) if field in fields else value
    if not values:
        return None
    # A gateway may show two engines' names; the one that says most is the one to believe.
    dialect = max(values, key=lambda name: len(values[name]))
    return Gauges(dialect, **values[dialect])
