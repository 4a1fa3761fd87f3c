"""What held a run back, and one change that would help. Pure: telemetry in, sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Optional

from saturate.report.receipt import BUSY, PACED_SHARE

CEILING_MIN_TICKS = 5
CEILING_QUEUED_SHARE = 0.5
CEILING_PINNED_SHARE = 0.7
CLIENT_MIN_TICKS = 3
CLIENT_SHARE = 0.3

_CEILING_FLAGS = {
    "vllm": "--max-num-seqs {n}",
    "sglang": "--max-running-requests {n}",
    "llamacpp": "-np {n} (the context of each slot shrinks unless -c is raised too)",
    "trtllm": "--max_batch_size {n}",
    "tei": "--max-concurrent-requests {n} (above it TEI answers 429 instead of queueing)",
}


def advise(
    ticks: Sequence[dict[str, Any]], final_limit: int, dialect: Optional[str], prepare_workers: int
) -> list[str]:
    """Hints for the end of a run, most telling first; empty when nothing stands out."""
    hints = [_server_ceiling(ticks, final_limit, dialect)]
    if len(ticks) >= CLIENT_MIN_TICKS:
        hints += [_rate(ticks), _cpu(ticks), _prep(ticks, prepare_workers), _source(ticks), _loop(ticks)]
    return [hint for hint in hints if hint]


def _server_ceiling(ticks: Sequence[dict[str, Any]], final_limit: int, dialect: Optional[str]) -> Optional[str]:
    known = [tick for tick in ticks if tick["running"] is not None]
    queued = [tick for tick in known if (tick["waiting"] or 0) > 0]
    if len(known) < CEILING_MIN_TICKS or len(queued) < CEILING_QUEUED_SHARE * len(known):
        return None
    running, times = Counter(int(tick["running"]) for tick in queued).most_common(1)[0]
    if times < CEILING_PINNED_SHARE * len(queued) or not 0 < running < final_limit:
        return None
    flag = _CEILING_FLAGS.get(dialect or "", "its limit on concurrent sequences, {n}").format(n=2 * running)
    share = round(100 * len(queued) / len(known))
    return (
        f"SERVER-BOUND: the engine ran {running} requests with others waiting for {share}% of the run; "
        f"if its memory allows, relaunch it with {flag}"
    )


def _rate(ticks: Sequence[dict[str, Any]]) -> Optional[str]:
    paced = _share_of_time(ticks, "pace_s", PACED_SHARE)
    if paced < CLIENT_SHARE:
        return None
    quota = ticks[-1].get("pace_rpm")
    known = f" of about {quota:.0f} requests a minute" if quota else ""
    return (
        f"RATE-BOUND: requests waited for the endpoint's quota{known} for {paced:.0%} of the run; "
        "only a higher quota, or shorter requests under a token quota, would be faster"
    )


def _cpu(ticks: Sequence[dict[str, Any]]) -> Optional[str]:
    busy = _share_of_time(ticks, "cpu_s", BUSY)
    if busy < CLIENT_SHARE:
        return None
    return (
        f"CLIENT-CPU-BOUND: this process used a whole core for {busy:.0%} of the run, and Python runs one thread at "
        "a time; split the rows over several processes with shard_select and shard=(rank, world)"
    )


def _share_of_time(ticks: Sequence[dict[str, Any]], key: str, per_second: float) -> float:
    """The share of the run in which `key` grew by at least `per_second` a second."""
    seconds, before = 0.0, 0.0
    for tick in ticks:
        if tick.get(key, 0.0) >= per_second * (tick["t"] - before) > 0:
            seconds += tick["t"] - before
        before = tick["t"]
    return seconds / before if before > 0 else 0.0


def _share(ticks: Sequence[dict[str, Any]], verdict: str) -> float:
    return sum(1 for tick in ticks if tick["bound_by"] == verdict) / len(ticks)


def _prep(ticks: Sequence[dict[str, Any]], prepare_workers: int) -> Optional[str]:
    if _share(ticks, "prep") < CLIENT_SHARE:
        return None
    calls = sum(tick["prep_n"] for tick in ticks)
    mean_ms = 1000 * sum(tick["prep_s"] for tick in ticks) / max(1, calls)
    remedy = (
        f"prepare_workers={2 * prepare_workers}, or do the work ahead with prepare_ahead() and a process pool"
        if prepare_workers >= 4
        else "prepare_workers=4"
    )
    return f"PREP-BOUND: to_request takes {mean_ms:.0f} ms a row and starves the window; try {remedy}"


def _source(ticks: Sequence[dict[str, Any]]) -> Optional[str]:
    if _share(ticks, "source") < CLIENT_SHARE:
        return None
    rows = sum(tick["ok"] + tick["bp"] for tick in ticks)
    ms = 1000 * sum(tick["source_s"] for tick in ticks) / max(1, rows)
    return (
        f"SOURCE-BOUND: the rows arrive at {ms:.0f} ms each, slower than the endpoint takes them; "
        "read ahead, read fewer columns, or split the input over shards"
    )


def _loop(ticks: Sequence[dict[str, Any]]) -> Optional[str]:
    if _share(ticks, "loop") < CLIENT_SHARE:
        return None
    lag = 100 * sum(tick["loop_lag_s"] for tick in ticks) / max(1e-9, ticks[-1]["t"])
    return (
        f"LOOP-BOUND: results waited for the consumer for {min(100, round(lag))}% of the run; "
        "make parse and the loop body cheaper, flush larger parts, or run several shards"
    )
