"""The set of ids seen: what was added is found, and nothing else."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

from saturate.rows.seen import IdSet

AWKWARD = [
    "",
    "0" * 16,
    "0" * 15,
    "0" * 17,
    "f" * 16,
    "F" * 16,
    "0123456789abcdef",
    "0123456789ABCDEF",
    "0123456789abcdeg",
    "0123456789abcde:",
    "0123456789abcde/",
    "0123456789abcde`",
    "0123456789abcde\x00",
    "é" * 8,
    "\ud800",
    "\\ud800",
    "a\x00",
    "a",
    "None",
    "x" * 100_000,
]


def some_ids(seed: int, count: int) -> list[str]:
    """Ids of every kind: hex, counted, hashed, nearly hex, of any length; some of them twice."""
    chance = random.Random(seed)
    kinds = [
        lambda: f"{chance.getrandbits(64):016x}",
        lambda: f"{chance.randrange(count):016x}",
        lambda: f"{chance.getrandbits(64):016X}",
        lambda: f"train-{chance.randrange(count):09d}",
        lambda: "".join(chance.choices("0123456789abcdef/:`g@GF\x00\x7fé", k=16)),
        lambda: "é" * chance.randrange(20),
    ]
    return [chance.choice(kinds)() for _ in range(count)]


def test_every_id_is_told_from_every_other() -> None:
    ids = IdSet()
    for count, id_ in enumerate(AWKWARD):
        assert id_ not in ids
        assert ids.add(id_)
        assert not ids.add(id_)
        assert len(ids) == count + 1
        assert [other in ids for other in AWKWARD] == [other in AWKWARD[: count + 1] for other in AWKWARD]


@pytest.mark.parametrize("seed", range(3))
def test_it_answers_as_a_set_does(seed: int) -> None:
    ids, plain = IdSet(), set()
    for id_ in some_ids(seed, 20_000):
        assert (id_ in ids) == (id_ in plain)
        assert ids.add(id_) == (id_ not in plain)
        plain.add(id_)
    assert len(ids) == len(plain)


@pytest.mark.parametrize("seed", range(3))
def test_a_column_is_added_as_its_ids_are(seed: int) -> None:
    texts = some_ids(seed, 30_000)
    there, absent = texts[:20_000], set(texts[20_000:]) - set(texts[:20_000])
    ids = IdSet()
    for start in range(0, len(there), 700):
        ids.update(pa.array(there[start : start + 700]))
    ids.settle()
    assert len(ids) == len(set(there))
    assert all(id_ in ids for id_ in there)
    assert not any(id_ in ids for id_ in absent)
    others = IdSet()
    others.update(pa.array(texts), unless_in=ids)
    others.settle()
    assert len(others) == len(absent)
    assert all(id_ in others for id_ in absent)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["skipped", "a", None, "b" * 16, ""])[1:],
        pa.array(["a", "b" * 16, ""], pa.large_string()),
        pa.array(["a", "b" * 16, "", "a", None]).dictionary_encode(),
        pa.chunked_array([["a", None], [], ["b" * 16, ""]]),
        pa.chunked_array([pa.nulls(3, pa.string()), pa.array(["a", "b" * 16, ""])]),
    ],
    ids=lambda column: str(column.type),
)
def test_text_is_found_however_arrow_holds_it(column: Any) -> None:
    ids = IdSet()
    ids.update(column)
    ids.settle()
    assert len(ids) == 3
    assert "a" in ids and "b" * 16 in ids and "" in ids


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array([b"a"]), pa.nulls(2), pa.array([], pa.string())])
def test_a_column_without_text_has_no_ids(column: Any) -> None:
    ids = IdSet()
    ids.update(column)
    ids.settle()
    assert len(ids) == 0
    assert "a" not in ids and "1" not in ids


def test_what_is_no_text_is_kept_as_it_is() -> None:
    ids = IdSet()
    assert ids.add(7) and ids.add(b"a") and not ids.add(7)
    assert 7 in ids and b"a" in ids
    assert "7" not in ids and "a" not in ids


@pytest.mark.parametrize("form", ["{:016x}", "train-{:020d}"])
def test_an_id_takes_at_most_24_bytes(form: str) -> None:
    ids = IdSet()
    most = 0.0
    chance = random.Random(0)
    for count in itertools.accumulate([10_000] * 20):
        for _ in range(10_000):
            ids.add(form.format(chance.getrandbits(64)))
        if count >= 50_000:
            most = max(most, ids.nbytes / count)
    assert most <= 24
