"""Outputs that the public project wrote: our readers say of them what its own readers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saturate.sinks import FileSink, ParquetSink, existing_ids, read_output

VECTORS = Path(__file__).parent.parent / "vectors" / "saturate"
OUTPUTS = ["plain", "healed", "declared", "sharded", "damaged"]
# Their sidecars are fine, but their part is torn or gone: a run does them again rather than lose their rows. Two of
# them have an error in another part, so they count as done unless errors are tried again.
NOWHERE_ELSE = {"k08", "k09", "k10"}
SUCCEEDED_NOWHERE_ELSE = NOWHERE_ELSE | {"k03", "k07"}


def expected(name: str) -> Any:
    return json.loads((VECTORS / name / "expected.json").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """A value as the recording spells it."""
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


@pytest.mark.parametrize("name", OUTPUTS)
def test_existing_ids_answers_what_every_reader_of_the_contract_answers(name: str) -> None:
    out = VECTORS / name / "out"
    assert sorted(existing_ids(out)) == expected(name)["existing_ids"]
    assert sorted(existing_ids(str(out), retry_errors=True)) == expected(name)["existing_ids_retry_errors"]


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_run_skips_the_same_ids_except_those_whose_part_is_torn_or_gone(name: str) -> None:
    sink = ParquetSink(VECTORS / name / "out")
    lost = NOWHERE_ELSE if name == "damaged" else set()
    lost_successes = SUCCEEDED_NOWHERE_ELSE if name == "damaged" else set()
    assert sink.existing_ids() == set(expected(name)["existing_ids"]) - lost
    assert sink.existing_ids(retry_errors=True) == set(expected(name)["existing_ids_retry_errors"]) - lost_successes


@pytest.mark.parametrize("name", OUTPUTS)
def test_read_output_yields_the_same_rows_in_the_same_order(name: str) -> None:
    rows = [[id_, plain(row)] for id_, row in read_output(VECTORS / name / "out")]
    assert json.loads(json.dumps(rows, default=str)) == expected(name)["read_output"]


def test_file_sink_finds_the_ids_of_a_recorded_directory() -> None:
    sink = FileSink(VECTORS / "filesink" / "out")
    assert sorted(sink.existing_ids()) == expected("filesink")["existing_ids"]


def test_reading_a_recorded_output_leaves_it_as_it_was() -> None:
    before = sorted(VECTORS.rglob("*"))
    list(read_output(VECTORS / "damaged" / "out"))
    existing_ids(VECTORS / "damaged" / "out")
    assert sorted(VECTORS.rglob("*")) == before
