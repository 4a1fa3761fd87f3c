"""A stream over HTTP: chunked NDJSON. Complete when the last chunk has come, and the trailers, if any, agree."""

import http.client
import re
import select
import zlib
from typing import Any, Optional
from urllib.parse import urljoin, urlsplit

from shuflr import core
from shuflr.client.address import Address, parse_address
from shuflr.client.connect import ConnectionLost, Reach, lost, requested, wake_reader
from shuflr.client.pieces import Buffers, End, Item
from shuflr.client.request import Place, Sequence, query
from shuflr.errors import StreamError

_READ = 1 << 20
_LONGEST_LINE = 4096
_DETAIL = 4096
_REDIRECTS = 5
_LONGEST_WAIT = 60.0
_ASKED = {
    "Accept": "application/x-ndjson, */*",
    "Accept-Encoding": "identity",
    "TE": "trailers",
    "User-Agent": "saturate-shuflr",
}
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")
_BUSY = (429, 502, 503, 504)
_buffers = Buffers()
_FAILURE_LINE = b'{"_shuflr_error":'  # the last line of a stream that failed, from the public server


class _Text:
    """Some bytes of a body."""

    __slots__ = ("_buffer", "_size", "_stream")

    def __init__(self, stream: "HttpStream", buffer: bytearray, size: int) -> None:
        self._stream = stream
        self._buffer = buffer
        self._size = size

    def prepare(self) -> None:
        """Nothing: all that is left to do is to make objects."""

    def records(self) -> "list[bytes]":
        listed = self._stream.listed(self._buffer, self._size)
        _buffers.give(self._buffer)
        return listed


class _Rest:
    """The end of a body: a last record, and whether it was all."""

    __slots__ = ("_stream",)

    def __init__(self, stream: "HttpStream") -> None:
        self._stream = stream

    def prepare(self) -> None:
        """Nothing: the records before it are counted when they are made."""

    def records(self) -> "list[bytes]":
        return self._stream.rest()


class HttpStream:
    """One GET of a stream."""

    exact = True
    marked = False
    weight = _READ

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
        self._file: Any = self._response.fp
        self._chunked: bool = self._response.chunked
        length = 0 if self._chunked else _number(headers.get("content-length"))
        self._left = -1 if length is None else length  # of a chunk, or of the body; -1: nobody says
        self._begun = self._over = False
        self._failure: Optional[ConnectionLost] = None
        self._trailers: Any = None
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
        if self._over:
            return End(None)
        buffer = _buffers.take(_READ)
        size = self._read_into(buffer)
        if not size:
            self._over = True
            return _Rest(self)
        self.received += size
        if self._digest is not None:
            self._digest.update(memoryview(buffer)[:size])
        if self._gunzip is not None:
            try:
                buffer = bytearray(self._gunzip.decompress(memoryview(buffer)[:size]))
            except zlib.error as error:
                raise lost(f"{self._url}: reading the stream", error) from error
            size = len(buffer)
        return _Text(self, buffer, size)

    def _read_into(self, buffer: bytearray) -> int:
        """Bytes of the body into a buffer, as many as are here and at least one; 0 at the body's proper end."""
        view, size = memoryview(buffer)[:_READ], 0
        while size < _READ and (size == 0 or (self._failure is None and self._arrived())):
            if self._failure is not None:
                raise self._failure
            try:
                got = self._read_some(view[size:])
            except ConnectionLost as error:
                self._failure = error  # raised when what came before it has been given out
            except http.client.HTTPException as error:
                self._failure = ConnectionLost(f"{self._url}: the stream broke off ({type(error).__name__})")
            except (OSError, ValueError) as error:
                self._failure = lost(f"{self._url}: reading the stream", error)
            else:
                if got == 0:
                    break
                size += got
        return size

    def _read_some(self, room: memoryview) -> int:
        """The same by one read of the socket, of one chunk."""
        if self._left == 0:
            self._left = self._next_chunk()
        if self._left == 0:
            return 0
        got: int = self._file.readinto1(room if self._left < 0 else room[: self._left])
        if got == 0:
            raise ConnectionLost(f"{self._url}: the connection closed before the stream's end")
        self._left -= got if self._left > 0 else 0
        return got

    def _next_chunk(self) -> int:
        """How long the next chunk is, 0 for the last, whose trailers are read then."""
        if not self._chunked or self._trailers is not None:
            return 0  # a body of stated length is over
        if self._begun and self._file.readline(8).strip():
            raise ConnectionLost(f"{self._url}: a chunk that is longer than it says")
        self._begun = True
        line = self._file.readline(_LONGEST_LINE)
        digits = line.partition(b";")[0].strip()
        if not line.endswith(b"\n"):
            raise ConnectionLost(f"{self._url}: the connection closed before the stream's end")
        if not _HEX.fullmatch(digits):
            raise ConnectionLost(f"{self._url}: {line[:40]!r} is not the length of a chunk")
        size = int(digits, 16)
        if size == 0:
            self._trailers = http.client.parse_headers(self._file)
        return size

    def _arrived(self) -> bool:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def listed(self, buffer: bytearray, size: int) -> "list[bytes]":
        """The records that are complete with these bytes of the body."""
        records = core.lines(buffer, size)
        rest = records.pop()
        if not records:
            self._carry.append(rest)
            return []
        if self._carry:
            records[0] = b"".join([*self._carry, records[0]])
        self._carry = [rest] if rest else []
        if self._held:
            records[:0] = self._held
            self._held = []
        if records[-1].startswith(_FAILURE_LINE):
            self._held = [records.pop()]
        self._count += len(records)
        return records

    def rest(self) -> "list[bytes]":
        """What is left at the body's end, which is compared with what the server says of it."""
        trailers: Any = self._trailers or {}
        if self._held and "shuflr-records" not in trailers:
            raise StreamError(f"server error: {self._held[0].decode('utf-8', 'replace')}")
        last = [*self._held, b"".join(self._carry)] if self._carry else self._held
        self._count += len(last)
        self._compare(trailers)
        return last

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
