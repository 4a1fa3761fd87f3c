"""Outputs recorded from the public project, resumed: nothing that is done there is paid for again.

The recordings also say what an output's readers must answer (`expected.json`); resuming must not change what was
there, only add what was missing.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow
import pytest
from recording_server import RecordingServer

import saturate

RECORDINGS = Path(__file__).parents[1] / "vectors" / "saturate"
DECLARED = pyarrow.schema(
    [
        ("id", pyarrow.string()),
        ("error", pyarrow.string()),
        ("n", pyarrow.int32()),
        ("t", pyarrow.float32()),
        ("s", pyarrow.large_string()),
    ]
)


class Recording:
    """A copy of one recorded output, resumed against a server that counts what it is paid for by id."""

    def __init__(self, name, place):
        source = RECORDINGS / name
        self.out = place / name
        shutil.copytree(source / "out", self.out)
        self.expected = json.loads((source / "expected.json").read_text(encoding="utf-8"))
        self.input = source / "input.jsonl"

    def input_rows(self):
        return [json.loads(line) for line in self.input.read_text(encoding="utf-8").splitlines()]

    def resume(self, rows, parse=lambda row, response: {}, output=None, **options):
        """Runs `rows`; returns the statistics and how often each id was paid for."""
        rows = list(saturate.stream(rows, id_key=options.pop("id_key", None)))
        with RecordingServer() as server:
            stats = saturate.pump(
                [(row_id, {"id": row_id, "row": row}) for row_id, row in rows],
                lambda row: {"model": "recording", "messages": [{"role": "user", "content": row["id"]}]},
                parse,
                server.endpoint,
                output or self.out,
                window=saturate.Fixed(3),
                signal_source="none",
                **options,
            )
            return stats, Counter(server.paid)


@pytest.fixture
def recording(tmp_path):
    return lambda name: Recording(name, tmp_path)


def ids_of(expected):
    return set(expected["existing_ids"])


def reads(output):
    return dict(saturate.read_output(str(output)))


def test_resuming_the_plain_recording_with_its_own_input_sends_no_request(recording):
    plain = recording("plain")
    with RecordingServer() as server:
        stats = saturate.pump(
            plain.input_rows(),
            lambda row: {"messages": [{"role": "user", "content": row["text"]}]},
            lambda row, response: {"answer": "paid again"},
            server.endpoint,
            plain.out,
        )
        assert server.requests == 0
    # 25 rows, the last one a repeat of an earlier one: a repeat of a stored row is done as well.
    assert (stats.rows_total, stats.rows_done_prior, stats.rows_processed, stats.rows_failed) == (25, 25, 0, 0)


def test_retrying_the_errors_of_the_plain_recording_pays_for_the_errors_alone(recording):
    plain = recording("plain")
    before = reads(plain.out)
    _, paid = plain.resume(plain.input_rows(), lambda row, response: {"answer": "healed"}, retry_errors=True)
    healed = ids_of(plain.expected) - set(plain.expected["existing_ids_retry_errors"])
    assert paid == Counter(healed)
    after = reads(plain.out)
    assert set(after) == ids_of(plain.expected)
    assert {row_id: row for row_id, row in after.items() if row_id in before} == before
    assert {after[row_id]["answer"] for row_id in healed} == {"healed"}


def test_resuming_the_healed_recording_by_its_id_key_sends_no_request(recording):
    healed = recording("healed")
    stats, paid = healed.resume(healed.input_rows(), id_key="k")
    assert not paid
    assert stats.rows_done_prior == len(healed.input_rows())


def test_the_one_id_of_the_healed_recording_that_never_succeeded_can_still_be_healed(recording):
    healed = recording("healed")
    _, paid = healed.resume(healed.input_rows(), lambda row, response: {"n": 1}, id_key="k", retry_errors=True)
    assert paid == Counter(["k15"])
    after = reads(healed.out)
    assert after["k15"]["n"] == 1
    assert set(after) == ids_of(healed.expected)


def test_new_rows_of_the_healed_recording_are_held_to_the_types_it_has(recording):
    healed = recording("healed")
    values = {"fits": 7, "does-not": 0.5}  # the column n holds whole numbers
    stats, _ = healed.resume([(one, {}) for one in values], lambda row, response: {"n": values[row["id"]]})
    assert (stats.rows_processed, stats.rows_failed) == (1, 1)
    after = reads(healed.out)
    assert after["fits"]["n"] == 7
    assert "does-not" not in after


def test_resuming_the_declared_recording_with_its_schema_sends_no_request_and_keeps_the_schema(recording):
    declared = recording("declared")
    known = sorted(ids_of(declared.expected))
    _, paid = declared.resume([(row_id, {}) for row_id in known], schema=DECLARED)
    assert not paid
    _, paid = declared.resume(
        [(row_id, {}) for row_id in known + ["new"]],
        lambda row, response: {"n": 1, "t": 0.5, "s": "x"},
        schema=DECLARED,
    )
    assert paid == Counter(["new"])
    assert reads(declared.out)["new"] == {"n": 1, "t": 0.5, "s": "x"}


def test_resuming_the_sharded_recording_pays_only_for_the_rows_of_the_shard_that_was_aborted(recording):
    sharded = recording("sharded")
    before = reads(sharded.out)
    rows = [(f"doc-{index:03}", {}) for index in range(48)]
    _, paid = sharded.resume(rows, lambda row, response: {"answer": row["id"], "rank": 2}, shard=(2, 3))
    missing = {row_id for row_id, _ in rows} - ids_of(sharded.expected)
    assert paid == Counter(missing)
    assert all(int(row_id[-3:]) % 3 == 2 for row_id in missing)
    after = reads(sharded.out)
    assert {row_id: after[row_id] for row_id in before} == before
    assert set(after) == {row_id for row_id, _ in rows} - set(sharded.expected["error_only"])
    assert (sharded.out / "completions" / "shard-2.done").read_bytes() == b"done"


def test_resuming_the_damaged_recording_pays_for_what_its_torn_parts_lost_and_for_nothing_else(recording):
    damaged = recording("damaged")
    before = reads(damaged.out)
    foreign = {path: path.read_bytes() for path in (damaged.out / "_state").iterdir()}
    rows = [json.loads(line) for line in (RECORDINGS / "healed" / "input.jsonl").read_text().splitlines()]
    _, paid = damaged.resume(rows, lambda row, response: {"n": 3}, id_key="k")
    # Some sidecars have outlived their parts: existing_ids has such ids, as every reader does, but their rows are
    # gone, and a run pays for them again rather than to lose them.
    assert saturate.existing_ids(str(RECORDINGS / "damaged" / "out")) == ids_of(damaged.expected)
    kept = {row_id for row_id, _ in damaged.expected["read_output"]} | set(damaged.expected["error_only"])
    assert kept < ids_of(damaged.expected)
    lost = {row["k"] for row in rows} - kept
    assert paid == Counter(lost)
    after = reads(damaged.out)
    assert set(after) == (kept | lost) - set(damaged.expected["error_only"])
    assert {row_id: after[row_id] for row_id in before} == before
    assert {after[row_id]["n"] for row_id in lost} == {3}
    assert {path: path.read_bytes() for path in foreign} == foreign
    assert not damaged.resume(rows, id_key="k")[1]


def test_resuming_the_recorded_files_pays_only_for_the_row_that_has_no_file(recording):
    files = recording("filesink")
    rows = [(row_id, {}) for row_id in files.expected["existing_ids"] + ["n2"]]
    _, paid = files.resume(rows, lambda row, response: {"text": "ž 日本"}, output=saturate.FileSink(str(files.out)))
    assert paid == Counter(["n2"])
    assert (files.out / "n2.txt").read_text(encoding="utf-8") == "ž 日本"
