"""A plain answer's head is read at a glance; anything else is left to the full parser."""

from __future__ import annotations

import pytest

from saturate.http.head import read_head

PLAIN = b"HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\n{}"


def test_a_plain_answer_gives_its_status_body_and_headers():
    head = read_head(PLAIN)
    assert head is not None
    assert (head.status, PLAIN[head.start :], head.length, head.closes) == (200, b"{}", 2, False)
    assert head.headers.get("retry-after") == head.headers["Retry-After"] == "7"
    assert head.headers.get("location") is None and "location" not in head.headers
    assert sorted(head.headers) == ["Content-Length", "Date", "Retry-After"] and len(head.headers) == 3


@pytest.mark.parametrize("status", [200, 201, 301, 404, 429, 503])
@pytest.mark.parametrize("name", [b"Content-Length", b"content-length", b"CONTENT-LENGTH"])
def test_any_final_status_and_any_case_will_do(status, name):
    head = read_head(b"HTTP/1.1 %d Said\r\n%b:3\r\n\r\nabc" % (status, name))
    assert head is not None and (head.status, head.length) == (status, 3)


@pytest.mark.parametrize(("value", "closes"), [(b"close", True), (b"Close", True), (b"keep-alive", False)])
def test_a_server_that_will_close_is_believed(value, closes):
    head = read_head(b"HTTP/1.1 200 OK\r\nConnection: " + value + b"\r\nContent-Length: 0\r\n\r\n")
    assert head is not None and head.closes is closes


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        PLAIN[:60],
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"200", b"103"),
        PLAIN.replace(b"200", b"204"),
        PLAIN.replace(b"200", b"2000"),
        PLAIN.replace(b"200 OK", b"OK"),
        PLAIN.replace(b"Content-Length: 2\r\n", b""),
        PLAIN.replace(b"Content-Length: 2", b"Content-Length: -2"),
        PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2, 2"),
        PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3"),
        PLAIN.replace(b"Content-Length: 2", b"Content-Length : 2"),
        PLAIN.replace(b"Content-Length: 2", b"X: content-length: 2"),
        PLAIN.replace(b"Date: today", b"Transfer-Encoding: chunked"),
        PLAIN.replace(b"Date: today", b"Content-Encoding: gzip"),
        PLAIN.replace(b"Date: today", b"Date: to\r\n day"),
        PLAIN.replace(b"Date: today", b"Date: today\nContent-Encoding: gzip"),
        PLAIN.replace(b"\r\n", b"\n"),
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_whatever_is_not_plain_is_left_to_the_full_parser(answer):
    assert read_head(answer) is None
