"""HTTP/1.1 as bytes: a request read, a response written.

`http.server` hands a request's header block to `email.parser`: 47 microseconds for seven headers, where `parse_head`
takes 3, and as much as all the rest of a request here. A simulated server shares its cores with the client that is
being measured, so this module reads strictly what clients send: a request line, header lines, and a body that is
either counted or chunked. Anything else is a `Refused` with the status to answer.

Invariant: a request is read to its last byte or the connection is given up. What follows it stays in the buffer, so
pipelined requests work.
"""

from __future__ import annotations

import http
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import Callable, Optional

HEAD_LIMIT = 64 * 1024  # what http.server accepts for one line; enough for any real header block
BODY_LIMIT = 256 * 1024 * 1024
_CHUNK_LINE_LIMIT = 1024
_RECEIVE = 64 * 1024  # below the size from which malloc maps and unmaps pages for every call

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch  # RFC 9110 5.6.2
_HEX = re.compile(rb"[0-9A-Fa-f]+").fullmatch


class Refused(Exception):
    """A request that gets an error for an answer: the status, a sentence for its sender, headers beside the usual."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class Gone(Exception):
    """The peer closed the connection in the middle of a request."""


class Head:
    """Request line and headers. Header names are lower case; of a repeated header the last value is kept."""

    __slots__ = ("headers", "keep_alive", "method", "path")

    def __init__(self, method: str, path: str, headers: Mapping[str, str], keep_alive: bool) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive


@lru_cache(maxsize=1024)
def _request_line(line: str) -> tuple[str, str, bool]:
    """Method, path without its query, and whether the version keeps a connection alive."""
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(400, "the request line is not METHOD TARGET HTTP/1.x")
    return words[0], words[1].partition("?")[0], words[2] != "HTTP/1.0"


@lru_cache(maxsize=4096)
def _header_line(line: str) -> tuple[str, str]:
    """Name in lower case, and value. Cached: a client sends the same lines with every request."""
    name, colon, value = line.partition(":")
    if not colon or not _TOKEN(name):
        raise Refused(400, f"not a header line: {line[:80]!r}")
    return name.lower(), value.strip(" \t")


def parse_head(block: bytes) -> Head:
    """Read a header block, without the empty line that ends it."""
    first, *lines = block.decode("latin-1").split("\r\n")
    method, path, keep_alive = _request_line(first)
    pairs = list(map(_header_line, lines))
    headers = dict(pairs)
    if len(headers) < len(pairs) and len({value for name, value in pairs if name == "content-length"}) > 1:
        raise Refused(400, "two Content-Length headers that disagree")
    connection = headers.get("connection")
    if connection is not None:
        connection = connection.lower()
        keep_alive = "close" not in connection and (keep_alive or "keep-alive" in connection)
    return Head(method, path, headers, keep_alive)


class Reader:
    """Requests from one connection. `receive(n)` returns up to n bytes, b"" at the end."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self._buffer = b""

    def head(self) -> Optional[Head]:
        """The next request's head; None when the peer closed the connection between requests."""
        data = self._buffer.lstrip(b"\r\n")  # RFC 9112 2.2: empty lines ahead of a request line are skipped
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                break
            if len(data) > HEAD_LIMIT:
                raise Refused(431, f"a header block of more than {HEAD_LIMIT} bytes")
            more = self._receive(_RECEIVE)
            if not more:
                if data.strip():
                    raise Gone
                return None
            data = data + more if data else more.lstrip(b"\r\n")
        self._buffer = data[end + 4 :]
        return parse_head(data[:end])

    def body(self, head: Head) -> bytes:
        """The body that belongs to `head`; b"" when it announces none."""
        coding = head.headers.get("transfer-encoding")
        length = head.headers.get("content-length")
        if coding is not None:
            if length is not None:
                raise Refused(400, "both Transfer-Encoding and Content-Length")
            if coding.lower() != "chunked":
                raise Refused(501, f"Transfer-Encoding {coding!r} is not understood; only chunked is")
            return self._chunked()
        if length is None:
            return b""
        if not (length.isascii() and length.isdigit()):
            raise Refused(400, f"Content-Length {length!r} is not a number")
        if int(length) > BODY_LIMIT:
            raise Refused(413, f"a body of {length} bytes; the limit is {BODY_LIMIT}")
        return self._take(int(length))

    def _take(self, size: int) -> bytes:
        data = self._buffer
        if len(data) < size:
            parts = [data]
            missing = size - len(data)
            while missing > 0:
                more = self._receive(max(_RECEIVE, min(missing, 1 << 20)))
                if not more:
                    raise Gone
                parts.append(more)
                missing -= len(more)
            data = b"".join(parts)
        self._buffer = data[size:]
        return data[:size]

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _CHUNK_LINE_LIMIT:
                raise Refused(400, "a chunk line without an end")
            more = self._receive(_RECEIVE)
            if not more:
                raise Gone
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _chunked(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            digits = self._line().partition(b";")[0].strip()
            if not _HEX(digits):
                raise Refused(400, f"not a chunk size: {digits[:20]!r}")
            size = int(digits, 16)
            if size == 0:
                while self._line():  # trailers, which nothing here reads
                    pass
                return b"".join(parts)
            total += size
            if total > BODY_LIMIT:
                raise Refused(413, f"a body of more than {BODY_LIMIT} bytes")
            parts.append(self._take(size))
            if self._line():
                raise Refused(400, "a chunk longer than its size")


_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}
_date: tuple[int, str] = (0, "")


def _date_line() -> str:
    """The Date header, formatted once a second (a race between threads formats it twice, with the same outcome)."""
    global _date
    second = int(time.time())
    if _date[0] != second:
        _date = (second, f"Date: {formatdate(second, usegmt=True)}\r\n")
    return _date[1]


def head_bytes(status: int, headers: Iterable[tuple[str, str]], keep_alive: bool) -> bytes:
    """A response head, up to and with its empty line."""
    line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    end = "\r\n" if keep_alive else "Connection: close\r\n\r\n"
    return f"{line}{_date_line()}{fields}{end}".encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body (data must not be empty: an empty chunk ends the body)."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
