"""The text of /metrics: vLLM's names and labels, in the Prometheus exposition format. Pure.

Source of the names: vLLM's V1 engine (https://docs.vllm.ai/en/stable/usage/metrics.html), which exports the KV usage
as a share of 1 and no prefix-hit rate, only the counters of queries and hits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Gauges:
    """One reading of the engine. Tokens are counted as the work is done, not when an answer is complete."""

    waiting: int = 0
    running: int = 0
    kv: float = 0.0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    max_running: int = 0


def exposition(gauges: Gauges, finished: int, model: str) -> bytes:
    """The page. `finished` counts answers that were completed."""
    labels = f'engine="0",model_name={json.dumps(model)}'
    lines: list[str] = []
    for name, kind, help_text, extra, value in (
        ("num_requests_running", "gauge", "Number of requests in model execution batches.", "", gauges.running),
        ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", "", gauges.waiting),
        ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", "", gauges.kv),
        ("prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", "", gauges.prompt_tokens),
        ("prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", "", 0),
        ("num_preemptions_total", "counter", "Preemptions by the engine.", "", gauges.preemptions),
        ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", "", gauges.prompt_tokens),
        ("generation_tokens_total", "counter", "Number of generation tokens processed.", "", gauges.generated_tokens),
        ("request_success_total", "counter", "Successfully processed requests.", ',finished_reason="stop"', finished),
    ):
        lines.append(f"# HELP vllm:{name} {help_text}\n# TYPE vllm:{name} {kind}\n")
        lines.append(f"vllm:{name}{{{labels}{extra}}} {float(value)!r}\n")
    return "".join(lines).encode()
