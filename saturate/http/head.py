"""The head of a plain answer, read at a glance. Pure: bytes in, a `Head` out, or None.

Nearly every answer is of one kind: HTTP/1.1, a final status, a body of a told length in no encoding. Reading that from
its bytes takes a twentieth of what a parser of mail headers takes. Invariant: whatever is not exactly of this kind is
None, for the full parser to read from the same bytes: chunked, compressed, without or with two lengths, interim,
folded, not whole, not HTTP.
"""

from __future__ import annotations

import http.client
import io
import re
from collections.abc import Iterator, Mapping
from typing import Optional

_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})[ \t]*\r\n")
_CONNECTION = re.compile(rb"\r\nconnection:[ \t]*([^\r\n]*)\r\n")
_BODILESS = frozenset({204, 304})
_STRANGE = (b"\r\ntransfer-encoding:", b"\r\ncontent-encoding:", b"\r\n ", b"\r\n\t")
_LONGEST = 16_384


class Head:
    """Status, headers, where the body starts, how long it is, and whether the server closes the connection after it."""

    __slots__ = ("closes", "headers", "length", "start", "status")

    def __init__(self, status: int, headers: Mapping[str, str], start: int, length: int, closes: bool):
        self.status = status
        self.headers = headers
        self.start = start
        self.length = length
        self.closes = closes


class Headers(Mapping[str, str]):
    """Header lines as a mapping that ignores case; parsed when somebody looks, which few do."""

    def __init__(self, block: bytes):
        self._block = block
        self._parsed: Optional[http.client.HTTPMessage] = None

    def _message(self) -> http.client.HTTPMessage:
        if self._parsed is None:
            self._parsed = http.client.parse_headers(io.BytesIO(self._block))
        return self._parsed

    def __getitem__(self, name: str) -> str:
        value = self._message()[name]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._message().keys())

    def __len__(self) -> int:
        return len(self._message())


def read_head(data: bytes) -> Optional[Head]:
    """The head of a plain answer at the start of `data`; None when it is of another kind, or not whole."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST)
    status = _STATUS.match(data)
    if end < 0 or status is None:
        return None
    line = data.index(b"\r\n")
    lower = data[line : end + 2].lower()
    if lower.count(b"content-length:") != 1 or any(strange in lower for strange in _STRANGE) or b"\n" in data[:line]:
        return None
    length = _LENGTH.search(lower)
    number = int(status[1])
    if length is None or number in _BODILESS or lower.count(b"\n") != lower.count(b"\r\n"):
        return None
    connection = _CONNECTION.search(lower)
    closes = connection is not None and b"close" in connection[1]
    return Head(number, Headers(data[line + 2 : end + 4]), end + 4, int(length[1]), closes)
