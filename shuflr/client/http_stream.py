"""A stream over HTTP: chunked NDJSON. Complete when the last chunk has come, and the trailers, if any, agree."""

import http.client
import zlib
from typing import Any, Optional
from urllib.parse import urljoin, urlsplit

from shuflr import core
from shuflr.client.address import Address, parse_address
from shuflr.client.connect import ConnectionLost, Reach, lost, requested, wake_reader
from shuflr.client.pieces import End, Item, Unpacked
from shuflr.client.request import Place, Sequence, query
from shuflr.errors import StreamError

_READ = 1 << 20
_DETAIL = 4096
_REDIRECTS = 5
_LONGEST_WAIT = 60.0
_ASKED = {
    "Accept": "application/x-ndjson, */*",
    "Accept-Encoding": "identity",
    "TE": "trailers",
    "User-Agent": "saturate-shuflr",
}
_BUSY = (429, 502, 503, 504)
_FAILURE_LINE = b'{"_shuflr_error":'  # the last line of a stream that failed, from the public server


class HttpStream:
    """One GET of a stream."""

    exact = True
    weight = 2 * _READ

    def __init__(self, address: Address, sequence: Sequence, place: Place, reach: Reach) -> None:
        self.transport = address.scheme.transport
        self._url = address.url
        self._connection, self._response = self._opened(address, query(sequence, place), reach)
        headers = self._response.headers
        self._sock: Any = self._connection.sock or self._response.fp.raw._sock
        self._sock.settimeout(reach.read_timeout)
        self.fingerprint: Optional[str] = headers.get("shuflr-fingerprint")
        self.resumed_at = _number(headers.get("shuflr-resumed-at")) or 0
        self.drop = place.records - self.resumed_at
        self.total = _number(headers.get("shuflr-total-records"))
        self._gunzip = zlib.decompressobj(31) if headers.get("content-encoding") == "gzip" else None
        self._digest = core.Xxh3() if "trailer" in headers else None
        self.received = 0
        self._count = 0
        self._carry: list[bytes] = []  # the beginning of a record
        self._held: list[bytes] = []  # a record that is an error's line if nothing follows

    def _opened(self, address: Address, target: str, reach: Reach) -> "tuple[Any, Any]":
        for _ in range(_REDIRECTS + 1):
            headers = dict(_ASKED)
            if reach.auth_token is not None:
                headers["Authorization"] = f"Bearer {reach.auth_token}"
            connection, response = requested(address, target, headers, reach)
            if response.status not in (301, 302, 303, 307, 308):
                break
            onward = urlsplit(urljoin(f"{address.scheme.transport}://{address.authority}{target}", _location(response)))
            connection.close()
            before = (address.scheme.transport, address.host, address.port)
            address = parse_address(onward._replace(query="").geturl())
            if (address.scheme.transport, address.host, address.port) != before:
                reach = reach._replace(auth_token=None)  # a token is for the server that it was given for
            target = f"{onward.path}?{onward.query}"
        if response.status != 200:
            try:
                raise self._refused(response)
            finally:
                connection.close()
        return connection, response

    def _refused(self, response: Any) -> StreamError:
        try:
            detail = response.read(_DETAIL).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException):
            detail = ""
        sentence = f"HTTP GET {self._url}: status code {response.status}{': ' if detail else ''}{detail}"
        if response.status in _BUSY:
            return ConnectionLost(sentence, wait=min(_number(response.headers.get("retry-after")) or 0, _LONGEST_WAIT))
        return StreamError(sentence)

    def receive(self) -> Item:
        while True:
            data = self._read()
            if not data:
                return self._end()
            records = self._split(data)
            if records:
                self._count += len(records)
                return Unpacked(records)

    def _read(self) -> bytes:
        """The next bytes of the body; none at its proper end."""
        response = self._response
        while True:
            try:
                data: bytes = response.read1(_READ)
                if not data and not response.chunked and response.length != 0:
                    raise ConnectionLost(f"{self._url}: the connection closed before the stream's end")
                self.received += len(data)
                if self._digest is not None:
                    self._digest.update(data)
                if self._gunzip is None or not data:
                    return data
                data = self._gunzip.decompress(data)
            except http.client.HTTPException as error:
                raise ConnectionLost(f"{self._url}: the stream broke off ({type(error).__name__})") from error
            except (OSError, ValueError, zlib.error) as error:
                if isinstance(error, StreamError):
                    raise
                raise lost(f"{self._url}: reading the stream", error) from error
            if data:
                return data

    def _split(self, data: bytes) -> "list[bytes]":
        """The records that are complete now."""
        if b"\n" not in data:
            self._carry.append(data)
            return []
        if self._carry:
            data = b"".join([*self._carry, data])
        records = data.split(b"\n")
        rest = records.pop()
        self._carry = [rest] if rest else []
        if self._held:
            records[:0] = self._held
            self._held = []
        if records[-1].startswith(_FAILURE_LINE):
            self._held = [records.pop()]
        return records

    def _end(self) -> Item:
        trailers = self._response.trailers or {}
        if self._held and "shuflr-records" not in trailers:
            raise StreamError(f"server error: {self._held[0].decode('utf-8', 'replace')}")
        last = [*self._held, b"".join(self._carry)] if self._carry else self._held
        if last:
            self._held, self._carry = [], []
            self._count += len(last)
            return Unpacked(last)
        self._compare(trailers)
        return End(None)

    def _compare(self, trailers: Any) -> None:
        """Raises ConnectionLost when the body is not what the server says that it sent."""
        said = _number(trailers.get("shuflr-records"))
        if said is not None and said not in (self._count, self.resumed_at + self._count):
            raise ConnectionLost(f"{self._url}: {self._count} records came of the {said} that were sent")
        digest = trailers.get("shuflr-xxh3")
        if digest and self._digest is not None and digest.lower() != f"{self._digest.digest():016x}":
            raise StreamError(f"{self._url}: the stream does not match its checksum: bytes were damaged on the way")

    def fileno(self) -> int:
        return int(self._sock.fileno())

    @property
    def pending(self) -> bool:
        return bool(hasattr(self._sock, "pending") and self._sock.pending())

    def interrupt(self) -> None:
        wake_reader(self._sock)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _location(response: Any) -> str:
    location = response.headers.get("location")
    if not location:
        raise StreamError(f"HTTP {response.status} without a location")
    return str(location)
