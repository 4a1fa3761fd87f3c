"""How long answers are."""

from __future__ import annotations

import statistics

import pytest

from saturate.simulate.lengths import Lengths


def test_a_number_is_every_answer_s_length() -> None:
    assert {Lengths.read(text).draw(key) for text in (7, "7", "fixed:7") for key in "abc"} == {7}


def test_the_same_request_gets_the_same_length_and_others_get_others() -> None:
    lengths = Lengths.read("uniform:10,1000")
    assert lengths.draw("a") == lengths.draw("a")
    assert len({lengths.draw(str(n)) for n in range(100)}) > 50


def test_distributions_have_the_shape_they_say() -> None:
    keys = [str(n) for n in range(2000)]
    uniform = [Lengths.read("uniform:10,20").draw(key) for key in keys]
    assert min(uniform) == 10 and max(uniform) == 20
    lognormal = [Lengths.read("lognormal:150,0.4").draw(key) for key in keys]
    assert statistics.median(lognormal) == pytest.approx(150, rel=0.05)
    bimodal = [Lengths.read("bimodal:20,400,0.25").draw(key) for key in keys]
    assert set(bimodal) == {20, 400}
    assert bimodal.count(400) / len(bimodal) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("text", ["", "many", "uniform:1", "lognormal:1,2,3", "zipf:1", "uniform:-1,3", "uniform:a,b"])
def test_a_length_that_says_nothing_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="uniform:LOW,HIGH"):
        Lengths.read(text)
