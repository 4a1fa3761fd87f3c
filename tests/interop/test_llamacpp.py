"""A real engine: llama.cpp's own server answers a run of ours, and its own gauges steer the window.

The model is tiny and random, so the answers are noise; that they arrive, are paired with their rows, are counted in
tokens and that the engine's load is seen while it works is what counts.
"""

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest

import saturate

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VECTORS = Path(__file__).parents[1] / "vectors"
RECORDED_METRICS = VECTORS / "llamacpp_metrics.txt"
FROZEN_TELEMETRY_KEYS = json.loads((VECTORS / "saturate" / "sharded" / "expected.json").read_text(encoding="utf-8"))[
    "telemetry_keys"
]
# The controller decides every 2 s: this long a run has at least two ticks, on any machine.
RUN_SECONDS = 5.0
MAX_TOKENS = 48


def to_request(row):
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": row["text"]}],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,  # llama.cpp's own: generate exactly max_tokens
    }


def parse(row, response):
    (choice,) = response["choices"]
    return {
        "asked": row["text"],
        "answer": choice["message"]["content"],
        "finish": choice["finish_reason"],
        "completion_tokens": response["usage"]["completion_tokens"],
    }


def rows_for(seconds, given):
    """Rows for as long as the run shall last; `given` collects them."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        row = {"text": f"say number {len(given)}: žluťoučký kůň, 日本語, 😀"}
        given.append(row)
        yield row


def gauge_names(metrics):
    return set(re.findall(r"^(llamacpp:\w+) ", metrics, re.MULTILINE))


def telemetry_of(output):
    (path,) = output.glob("telemetry-shard0-*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_engine_is_healthy_answers_chat_and_has_the_gauges_of_the_recorded_metrics(engine):
    assert json.loads(engine.get("/health"))["status"] == "ok"
    body = json.dumps(to_request({"text": "hello"})).encode("utf-8")
    request = urllib.request.Request(
        engine.endpoint + "/chat/completions", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == MAX_TOKENS
    recorded = gauge_names(RECORDED_METRICS.read_text(encoding="utf-8"))
    assert {"llamacpp:requests_processing", "llamacpp:requests_deferred"} <= recorded
    assert gauge_names(engine.get("/metrics")) >= recorded


def test_a_real_engine_answers_every_row_of_a_run_and_its_gauges_are_read_and_recorded(engine, tmp_path):
    out = tmp_path / "out"
    given = []
    stats = saturate.pump(rows_for(RUN_SECONDS, given), to_request, parse, engine.endpoint, out)

    assert (stats.rows_total, stats.rows_processed, stats.rows_failed) == (len(given), len(given), 0)
    assert len(given) > engine.slots
    landed = dict(saturate.read_output(str(out)))
    assert {row_id: row["asked"] for row_id, row in landed.items()} == {
        saturate.content_id(row): row["text"] for row in given
    }
    assert all(row["answer"] and row["finish"] == "length" for row in landed.values())
    assert stats.completion_tokens == MAX_TOKENS * len(given)
    assert stats.prompt_tokens > len(given)

    assert {frozenset(FROZEN_TELEMETRY_KEYS) <= set(tick) for tick in telemetry_of(out)} == {True}
    # The record of the end is no tick: what was counted since the last one, without a look at the engine.
    ticks = [tick for tick in telemetry_of(out) if tick["reason"] != "end"]
    # The engine has a thread for each connection and fewer threads than the window has requests. One that asks for
    # the gauges and finds all threads taken waits for seconds, until a kept-alive connection is closed for its age.
    assert len(ticks) >= 2, f"a tick took too long: {ticks}"
    assert all(tick["waiting"] is not None and tick["running"] is not None for tick in ticks)
    assert all(0 <= tick["running"] <= engine.slots for tick in ticks)
    # The window starts above the engine's slots, so that requests wait inside the engine and it says so.
    assert max(tick["running"] for tick in ticks) == engine.slots
    assert max(tick["waiting"] for tick in ticks) > 0
    assert max(tick["tok_s"] for tick in ticks) > 0

    again = saturate.pump(given, to_request, parse, engine.endpoint, out)
    assert (again.rows_done_prior, again.rows_processed) == (len(given), 0)


def test_a_client_of_a_real_engine_knows_its_dialect_and_pairs_rows_with_their_answers(engine):
    given, ticks = [], []
    with saturate.AdaptiveClient(engine.endpoint, window=saturate.Fixed(12), on_tick=ticks.append) as client:
        done = list(saturate.through(client, saturate.stream(rows_for(RUN_SECONDS / 2, given)), to_request, parse))
        assert client.dialect == "llamacpp"
    assert sorted(one.row["text"] for one in done) == sorted(row["text"] for row in given)
    for one in done:
        assert one.error is None
        assert one.id == saturate.content_id(one.row)
        assert one.out["asked"] == one.row["text"]
        assert one.usage["completion_tokens"] == MAX_TOKENS
    assert ticks
