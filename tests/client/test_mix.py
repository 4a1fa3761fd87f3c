"""`Mix` keeps each source to its weight, to less than one record at any time, and goes on where it stood (case B24)."""

import json
import random
from collections import Counter
from itertools import islice

import pytest

from shuflr import Dataset, Mix
from shuflr.errors import InputError, TokenError
from shuflr.order.mixing import shares, turns


class Numbers:
    """0, 1, 2 … up to an end, with a state; counts how often it was opened."""

    def __init__(self, name, end=10**9):
        self.name, self.end, self.at, self.start, self.opened = name, end, 0, 0, 0

    def __iter__(self):
        self.opened += 1
        self.at, self.start = self.start, 0
        return self._run()

    def _run(self):
        while self.at < self.end:
            self.at += 1
            yield self.name, self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = self.at = state["at"]


@pytest.mark.parametrize("seed", range(12))
def test_each_source_keeps_to_its_share_at_every_record(seed):
    draw = random.Random(seed)
    weights = {f"s{i}": draw.choice((1, 2, 7, 0.1, 0.333, draw.random(), 50)) for i in range(draw.randint(2, 40))}
    parts = shares(weights)
    whole = sum(parts.values())
    counts = Counter()
    for n, name in enumerate(islice(turns(parts, {}), 5000), start=1):
        counts[name] += 1
        assert all(abs(counts[each] * whole - n * part) < whole for each, part in parts.items())


def test_a_schedule_goes_on_from_its_counts():
    parts = shares({"a": 3, "b": 0.7, "c": 11})
    whole = list(islice(turns(parts, {}), 1000))
    for at in (0, 1, 500, 999):
        assert list(islice(turns(parts, Counter(whole[:at])), 1000 - at)) == whole[at:]


def test_a_weight_of_zero_is_never_opened():
    sources = {name: Numbers(name) for name in "abc"}
    records = list(islice(Mix(sources, {"a": 1, "b": 0, "c": 1}), 100))
    assert sources["b"].opened == 0 and Counter(name for name, _ in records) == {"a": 50, "c": 50}


def test_it_ends_as_told():
    def mixed(stop, most=100):
        return list(islice(Mix({"a": Numbers("a", 3), "b": Numbers("b", 6)}, {"a": 1, "b": 1}, stop=stop), most))

    assert Counter(name for name, _ in mixed("first")) in ({"a": 3, "b": 3}, {"a": 3, "b": 4})
    assert sorted(mixed("all")) == [("a", i) for i in range(3)] + [("b", i) for i in range(6)]
    assert len(mixed("none")) == 100 and mixed("none").count(("a", 0)) > 10
    with pytest.raises(InputError, match="is empty"):
        list(Mix({"a": Numbers("a", 0)}, {"a": 1}, stop="none"))
    assert list(Mix({"a": Numbers("a", 0)}, {"a": 1}, stop="all")) == []


def test_weights_change_at_the_record_that_was_told():
    schedule = [(0, {"a": 1, "b": 0}), (10, {"a": 1, "b": 3}), (30, {"a": 0, "b": 1})]
    names = [name for name, _ in islice(Mix({"a": Numbers("a"), "b": Numbers("b")}, schedule), 40)]
    assert Counter(names[:10]) == {"a": 10} and Counter(names[10:30]) == {"a": 5, "b": 15} and set(names[30:]) == {"b"}


@pytest.mark.parametrize("stop", ["first", "all", "none"])
@pytest.mark.parametrize("schedule", [None, [(0, {"a": 1, "b": 2}), (7, {"a": 2, "b": 1})]])
def test_it_goes_on_behind_any_record(stop, schedule):
    def mix():
        return Mix({"a": Numbers("a", 9), "b": Numbers("b", 14)}, schedule or {"a": 2, "b": 3}, stop=stop)

    full = list(islice(mix(), 40))
    for taken in range(len(full) + 1):
        first = mix()
        head = list(islice(first, taken))
        second = mix()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert head + list(islice(second, len(full) - taken)) == full, taken


def test_what_makes_no_sense_is_refused():
    sources = {"a": Numbers("a"), "b": Numbers("b")}
    wrong = {"a": 1}, {"a": 1, "b": -1}, {"a": 0, "b": 0}, {"a": 1, "b": float("nan")}, {"a": 1, "b": 1, "c": 1}, []
    for weights in wrong:
        with pytest.raises(InputError):
            Mix(sources, weights)
    with pytest.raises(InputError):
        Mix(sources, [(5, {"a": 1, "b": 1})])
    with pytest.raises(InputError):
        Mix(sources, {"a": 1, "b": 1}, stop="never")
    with pytest.raises(TokenError):
        Mix(sources, {"a": 1, "b": 1}).load_state_dict({"version": 1, "sources": {"x": {}}})


def test_served_datasets_mix_and_resume(served):
    def mix():
        return Mix({"x": Dataset(served.urls[0], seed=1), "y": Dataset(served.urls[1], seed=2)}, {"x": 1, "y": 3})

    full = list(mix())
    assert 3990 < len(full) <= 4001
    first = mix()
    head = list(islice(first, 1234))
    second = mix()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + list(second) == full
