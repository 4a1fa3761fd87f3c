"""Which fault hits which request, in virtual time."""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime

import pytest

from saturate.simulate.faults import CLEAN, KINDS, Fault, Faults, Judge, retry_after

CHAT = "/v1/chat/completions"


def struck(judge: Judge, name: str, now: float = 0.0, body: bytes = b"", route: str = CHAT) -> bool:
    return judge.verdict(now, name, route, body) is not CLEAN


def test_a_fault_is_written_alike_as_text_as_a_mapping_and_in_python() -> None:
    assert (
        Fault.read("error:rate=0.5,status=503,late=1")
        == Fault.read({"kind": "error", "rate": 0.5, "status": 503, "late": True})
        == Fault("error", rate=0.5, status=503, late=True)
    )


def test_every_kind_can_be_made_with_its_defaults() -> None:
    for kind in set(KINDS) - {"quota"}:
        fault = Fault(kind)
        assert all(getattr(fault, name) == value for name, value in KINDS[kind].defaults.items())


def test_a_parameter_given_as_zero_is_zero_and_not_the_default() -> None:
    assert Fault.read("cap:requests=0").requests == 0
    assert Fault.read("delay:seconds=0").seconds == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "explode",
        "error:loudness=3",
        "error:factor=3",
        "error:status=many",
        "error:rate=2",
        "error:rate",
        "malformed:shape=odd",
        "outage:how=quietly",
        "delay:seconds=-2",
        "quota",
        "drip:bytes_per_s=0",
        "outage:rate=0.5",
        "cap:contains=x",
        "error:retry_after=date:soon",
        "explode:loudness=3",
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"fault"):
        Faults(text)


def test_the_rate_is_a_share_of_attempts_and_repeats_with_the_seed() -> None:
    def run(seed: int) -> list[bool]:
        judge = Judge(Faults("error:rate=0.3", seed=seed), 0.0)
        return [struck(judge, f"row {n}") for n in range(2000)]

    assert run(1) == run(1) != run(2)
    assert sum(run(1)) / 2000 == pytest.approx(0.3, abs=0.04)


def test_the_verdict_does_not_depend_on_the_order_of_requests() -> None:
    names = [f"row {n}" for n in range(200)]
    forth, back = (Judge(Faults("error:rate=0.5"), 0.0) for _ in range(2))
    assert {name: struck(forth, name) for name in names} == {name: struck(back, name) for name in reversed(names)}


def test_a_retry_draws_again_so_it_can_succeed() -> None:
    judge = Judge(Faults("error:rate=0.5"), 0.0)
    attempts = [[struck(judge, f"row {n}") for _ in range(10)] for n in range(50)]
    assert all(True in tries and False in tries for tries in attempts)


def test_attempts_limits_a_fault_to_the_first_attempts_of_each_id() -> None:
    judge = Judge(Faults("hang:attempts=2"), 0.0)
    assert [struck(judge, name) for name in ("a", "b", "a", "a", "b", "b")] == [True, True, True, False, True, False]


def test_first_limits_a_fault_to_the_first_requests() -> None:
    judge = Judge(Faults("drop:first=2"), 0.0)
    assert [struck(judge, name) for name in "abc"] == [True, True, False]


def test_start_and_end_limit_a_fault_to_a_time_counted_from_when_it_was_set() -> None:
    judge = Judge(Faults("error:start=5,end=10"), 100.0)
    assert [struck(judge, "a", 100.0 + passed) for passed in (0, 4.9, 5, 9.9, 10)] == [False, False, True, True, False]


def test_contains_and_route_limit_a_fault_to_some_rows() -> None:
    judge = Judge(Faults("error:contains=POISON,route=/completions"), 0.0)
    assert struck(judge, "a", body=b"... POISON ...")
    assert not struck(judge, "b", body=b"... fine ...")
    assert not struck(judge, "c", body=b"... POISON ...", route="/v1/embeddings")


def test_one_fault_stands_instead_of_the_answer_and_any_number_spoil_it() -> None:
    judge = Judge(Faults("gzip", "error:contains=X", "hang:contains=X", "chunked"), 0.0)
    verdict = judge.verdict(0.0, "a", CHAT, b"X")
    assert verdict.instead is not None and verdict.instead.kind == "error"
    assert [fault.kind for fault in verdict.after] == ["gzip", "chunked"]


def test_an_outage_lasts_from_its_start_to_its_end_and_a_cold_start_its_seconds() -> None:
    judge = Judge(Faults("outage:start=5,end=35,how=refuse", "cold_start:seconds=2,status=409"), 0.0)
    kinds = [(fault.kind if (fault := judge.outage(now)) else None) for now in (0, 1.9, 2, 5, 34.9, 35)]
    assert kinds == ["cold_start", "cold_start", None, "outage", "outage", None]
    assert [judge.next_change(now) for now in (0, 2, 5, 35)] == [2, 3, 30, math.inf]


def test_slowdowns_multiply_while_they_last() -> None:
    judge = Judge(Faults("slow:factor=4,start=1,end=3", "slow:factor=2,start=2,end=4"), 0.0)
    assert [judge.slowdown(now) for now in (0, 1, 2, 3, 4)] == [1, 4, 8, 2, 1]


def test_a_quota_lets_through_what_it_says_a_minute() -> None:
    judge = Judge(Faults("quota:per_minute=600,burst=0.01"), 0.0)
    passed = sum(judge.charge(tick / 100, 1)[0] is None for tick in range(6000))
    assert passed == pytest.approx(600 + 6, abs=1)


def test_waiting_as_long_as_the_quota_asks_is_enough_and_less_is_not() -> None:
    judge = Judge(Faults("quota:per_minute=60,burst=0.1,retry_after=auto-fraction"), 0.0)
    while True:
        refusal, _ = judge.charge(0.0, 1)
        if refusal is not None:
            break
    wait = float(refusal.retry_after or "")
    assert judge.charge(wait - 0.01, 1)[0] is not None
    assert judge.charge(wait, 1)[0] is None


def test_a_token_quota_counts_tokens_and_a_refusal_takes_nothing() -> None:
    judge = Judge(Faults("quota:per_minute=100,tokens_per_minute=1000"), 0.0)
    assert judge.charge(0.0, 900)[0] is None
    refusal, headers = judge.charge(0.0, 900)
    assert refusal is not None and refusal.retry_after == "48"
    remaining = dict(headers)
    assert remaining["x-ratelimit-remaining-requests"] == "99"
    assert remaining["x-ratelimit-remaining-tokens"] == "100"
    assert remaining["x-ratelimit-limit-tokens"] == "1000"


def test_quota_headers_come_in_two_dialects_or_not_at_all() -> None:
    def names(style: str) -> set[str]:
        judge = Judge(Faults(f"quota:per_minute=60,headers={style}"), 0.0)
        return {name for name, _ in judge.charge(0.0, 1)[1]}

    assert names("ratelimit") == {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
    assert "x-ratelimit-reset-requests" in names("x-ratelimit")
    assert names("none") == set()


def test_retry_after_is_seconds_a_fraction_a_date_or_any_text() -> None:
    assert retry_after("7", 0.0) == [("Retry-After", "7")]
    assert retry_after("0.25", 0.0) == [("Retry-After", "0.25")]
    assert retry_after("soon", 0.0) == [("Retry-After", "soon")]
    assert retry_after("", 0.0) == []
    [(_, date)] = retry_after("date:10", 1_000_000_000.5)
    assert parsedate_to_datetime(date).timestamp() == 1_000_000_011
