"""HTTP/1.1 read from bytes, however they arrive."""

from __future__ import annotations

from typing import Callable

import pytest

from saturate.simulate import wire
from saturate.simulate.wire import Gone, Reader, Refused

COUNTED = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\nX-A:  b \r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"


def arriving(data: bytes, size: int) -> Callable[[int], bytes]:
    """A receive that hands out at most `size` bytes at a time."""
    rest = [data]

    def receive(limit: int) -> bytes:
        piece, rest[0] = rest[0][: min(size, limit)], rest[0][min(size, limit) :]
        return piece

    return receive


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100000])
def test_requests_are_read_alike_however_their_bytes_arrive(size: int) -> None:
    reader = Reader(arriving(COUNTED + b"\r\n" + CHUNKED + COUNTED, size))
    bodies = []
    while (head := reader.head()) is not None:
        bodies.append(reader.body(head))
    assert bodies == [b"hello", b"hello", b"hello"]


def test_names_are_lower_case_values_are_trimmed_and_the_query_is_cut() -> None:
    head = Reader(arriving(COUNTED, 1000)).head()
    assert head is not None
    assert (head.method, head.path, head.headers["x-a"], head.keep_alive) == ("POST", "/v1/x", "b", True)


@pytest.mark.parametrize(
    ("version", "connection", "keeps"),
    [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False), ("1.0", "Keep-Alive", True)],
)
def test_a_connection_is_kept_as_version_and_header_say(version: str, connection: str, keeps: bool) -> None:
    extra = f"\r\nConnection: {connection}" if connection else ""
    assert wire.parse_head(f"GET / HTTP/{version}{extra}".encode()).keep_alive is keeps


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nspaced : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 268435457\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70000, 431),
    ],
)
def test_what_is_no_request_is_refused_with_a_status(data: bytes, status: int) -> None:
    reader = Reader(arriving(data, 1000))
    with pytest.raises(Refused) as refused:
        head = reader.head()
        assert head is not None
        reader.body(head)
    assert refused.value.status == status


@pytest.mark.parametrize("data", [COUNTED[:-1], COUNTED[:20], CHUNKED[:-2]])
def test_a_request_cut_off_in_the_middle_is_gone(data: bytes) -> None:
    reader = Reader(arriving(data, 1000))
    with pytest.raises(Gone):
        head = reader.head()
        assert head is not None
        reader.body(head)
