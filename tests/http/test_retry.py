"""The retry policy: what an answer means, how long to wait, when to give up. Pure, so tested by values."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from saturate.http.retry import Class, GiveUp, Ladder, Retry, classify, excerpt, retry_after_seconds, status_error


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_any_2xx_is_a_success(status):
    assert classify(status) is Class.OK


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 504, 529, 599, 600, 199])
def test_what_may_pass_later_is_transient(status):
    assert classify(status) is Class.TRANSIENT


@pytest.mark.parametrize("status", [301, 304, 307, 400, 401, 403, 404, 413, 422])
def test_what_cannot_pass_is_fatal(status):
    assert classify(status) is Class.FATAL


def test_429_is_a_class_of_its_own():
    assert classify(429) is Class.RATE


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0), ("7", 7), ("1.5", 1.5), (" 30 ", 30), ("1800", 1800), (".5", 0.5), ("86400", 86400)],
)
def test_retry_after_is_seconds_whole_or_fractional(header, seconds):
    assert retry_after_seconds(header, now_unix=0) == seconds


def test_retry_after_may_be_an_http_date():
    assert retry_after_seconds(formatdate(1_000_060, usegmt=True), now_unix=1_000_000) == 60
    assert retry_after_seconds(formatdate(999_000, usegmt=True), now_unix=1_000_000) == 0


@pytest.mark.parametrize("header", [None, "", "soon", "-5", "1e3", "nan", "inf", "1.2.3", "٣", "Wed, 99 Foo"])
def test_a_retry_after_that_says_nothing_usable_is_none(header):
    assert retry_after_seconds(header, now_unix=0) is None


def waits(ladder: Ladder, kind: Class, retry_after, uniform=1.0, limit=10_000):
    out = []
    for _ in range(limit):
        decision = ladder.after(kind, "http x", retry_after, uniform)
        if isinstance(decision, GiveUp):
            return out, decision.error
        out.append(decision.wait_s)
    return out, None


def test_a_transient_failure_is_tried_five_times_with_full_jitter():
    assert waits(Ladder(), Class.TRANSIENT, None) == ([1, 2, 4, 8], "http x")
    assert waits(Ladder(), Class.TRANSIENT, None, uniform=0.5) == ([0.5, 1, 2, 4], "http x")


def test_a_fatal_answer_is_not_tried_again():
    assert waits(Ladder(), Class.FATAL, None) == ([], "http x")


def test_overload_is_not_failure_a_429_is_waited_out_by_time_not_by_count():
    got, error = waits(Ladder(), Class.RATE, None, uniform=0.5)
    assert len(got) > 10 and error == "http x"
    assert 240 <= sum(got) <= 330
    assert max(got) <= 60


def test_luck_does_not_shorten_a_rows_patience():
    unlucky, _ = waits(Ladder(), Class.RATE, None, uniform=0.999)
    lucky, _ = waits(Ladder(), Class.RATE, None, uniform=0.0)
    assert len(unlucky) == len(lucky)


def test_retry_after_is_a_floor_for_every_response_and_spread_to_avoid_a_herd():
    assert Ladder().after(Class.RATE, "e", 30.0, 0.0) == Retry(30.0)
    assert Ladder().after(Class.RATE, "e", 30.0, 0.5) == Retry(33.0)
    assert Ladder().after(Class.TRANSIENT, "e", 120.0, 0.0) == Retry(120.0)
    ladder = Ladder()
    assert [ladder.after(Class.RATE, "e", s, 0.0).wait_s for s in (5.0, 90.0, 1.0)] == [5.0, 90.0, 1.0]


def test_half_an_hour_is_honoured_and_what_exceeds_the_users_cap_is_an_error_that_says_so():
    assert Ladder().after(Class.RATE, "e", 1800.0, 0.0) == Retry(1800.0)
    decision = Ladder(max_retry_after_s=60).after(Class.RATE, "http 429: quota", 61.0, 0.0)
    assert isinstance(decision, GiveUp)
    assert decision.error == "http 429: quota (the server asks to wait 61 s more; a row waits 60 s in all)"


def test_waiting_that_the_server_asks_for_is_bounded_in_all():
    got, error = waits(Ladder(max_retry_after_s=100), Class.RATE, 30.0, uniform=0.0)
    assert got == [30.0, 30.0, 30.0] and "asks to wait" in error


def test_429s_do_not_use_up_the_attempts_for_real_failures():
    ladder = Ladder()
    for _ in range(6):
        assert isinstance(ladder.after(Class.RATE, "e", 1.0, 0.0), Retry)
    got, _ = waits(ladder, Class.TRANSIENT, None)
    assert len(got) == 4


def test_an_error_text_has_the_status_and_the_first_300_characters_of_the_body():
    body = ("é" * 400).encode()
    assert status_error(503, body, retried=True) == "http 503 after retries: " + "é" * 300
    assert status_error(400, b"too long", retried=False) == "http 400: too long"
    assert excerpt(b"\xff\xfe") == "��"


def test_a_redirect_says_where_to_and_what_to_do():
    assert "http 302: endpoint redirects to https://x/v1; pass the final address" in status_error(
        302, b"", "https://x/v1", retried=False
    )
