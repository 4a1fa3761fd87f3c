"""HTTP/1.1 on sockets: cheroot reads the requests, and the streams go out as chunks straight from decoded blocks.

A stream's head goes out with its first bytes, so whatever is wrong before them gets a proper status. What goes wrong
afterwards cuts the body off in the middle of a chunk: no client takes that for its end. A body ends normally only when
all of it was sent.
"""

import email.utils
import io
import json
import logging
import select
import ssl
import time
from typing import Any, NamedTuple, Optional

from shuflr import core
from shuflr.errors import DatasetChanged, InputError, Overloaded, ShuflrError, UnknownDataset
from shuflr.server.catalog import Catalog
from shuflr.server.edge import DEFAULT_LIMITS, Authenticate, Connection, Edge, Limits, anybody
from shuflr.server.live import Live, LiveStream
from shuflr.server.memory import Memory
from shuflr.server.page import Offer, status_page
from shuflr.server.query import parse_query
from shuflr.server.status import Status
from shuflr.server.streaming import DecodedStream, Lines, Plan, Stream

try:
    from cheroot.server import HTTPRequest, HTTPServer
except ImportError:
    raise InputError("serving HTTP needs cheroot and prometheus-client: pip install 'saturate-shuflr[serve]'") from None

log = logging.getLogger("shuflr")

_MOST_HEADER_BYTES = 1 << 14  # of a request line and its headers
_READ = 1 << 12
_RETRY_AFTER = 1  # seconds, for a client that finds no room
_JSON = "application/json; charset=utf-8"
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip
_Headers = tuple[tuple[str, object], ...]


class _Answer(NamedTuple):
    """A whole response."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: _Headers = ()


def _json(status: int, value: object, headers: _Headers = ()) -> _Answer:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    return _Answer(status, body, _JSON, headers)


def _failure(error: Exception) -> _Answer:
    """What is answered for something that goes wrong before a stream begins."""
    if isinstance(error, InputError):
        return _json(400, {"error": "bad_query", "detail": str(error)})
    if isinstance(error, DatasetChanged):
        return _json(409, {"error": "input_changed", "detail": str(error)})
    if isinstance(error, (Overloaded, MemoryError)):
        detail = str(error) or "no memory is left"
        return _json(503, {"error": "overloaded", "detail": detail}, (("retry-after", _RETRY_AFTER),))
    return _json(500, {"error": "io", "detail": str(error)})


class HttpEdge(Edge):
    """Serves HTTP/1.1 on any number of listening sockets.

    authenticate: given the value of the Authorization header, empty if there is none. offers: what the status page says
    that clients can use. status: what the server's processes do, for the page and the metrics."""

    name = "shuflr-http"

    def __init__(
        self,
        catalog: Catalog,
        memory: Memory,
        live: Optional[Live] = None,
        authenticate: Authenticate = anybody,
        limits: Limits = DEFAULT_LIMITS,
        tls: Optional[ssl.SSLContext] = None,
        status: Optional[Status] = None,
        offers: "tuple[Offer, ...]" = (),
    ) -> None:
        super().__init__(catalog, memory, live, authenticate, limits, tls)
        self.status = status or Status(self.live, catalog)
        self.offers = offers
        # Never started: what cheroot's requests look their limits up in.
        self.settings = HTTPServer(("127.0.0.1", 0), gateway=None)
        self.settings.max_request_header_size = _MOST_HEADER_BYTES

    def connection(self, sock: Any, peer: str, full: bool) -> "_Connection":
        return _Connection(self, sock, peer, full)


class _Reader(io.RawIOBase):
    """What a client sends, read without blocking and waited for until the deadline."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.read_into(buffer)


class _Body:
    """The body of a stream: its head, the chunks around its bytes, and what ends it.

    chunked: else the body is what comes until the connection closes. digest: over the body, for a client that takes
    trailers."""

    def __init__(self, head: bytes, chunked: bool, digest: Optional[core.Xxh3]) -> None:
        self.pending = head  # goes out before anything else
        self.started = False  # something is out
        self._chunked = chunked
        self._digest = digest
        self._left = 0  # bytes of the chunk that was announced

    def next(self, view: memoryview) -> memoryview:
        """As much of a block as may follow `pending`."""
        if not self._chunked:
            return view
        if self._left == 0:
            self._left = len(view)
            self.pending += b"%x\r\n" % self._left
        return view[: self._left]

    def sent(self, count: int, view: memoryview) -> int:
        """So many bytes of `pending` and then the view are out; returns how many of the view."""
        taken = max(count - len(self.pending), 0)
        self.pending = self.pending[count:]
        self.started = self.started or count > 0
        if taken and self._digest is not None:
            self._digest.update(view[:taken])
        if taken and self._chunked:
            self._left -= taken
            if self._left == 0:
                self.pending = b"\r\n"
        return taken

    def end(self, records: int) -> None:
        """All blocks are out."""
        if not self._chunked:
            return
        self.pending += b"0\r\n"
        if self._digest is not None:
            self.pending += b"shuflr-records: %d\r\nshuflr-xxh3: %016x\r\n" % (records, self._digest.digest())
        self.pending += b"\r\n"


class _Connection(Connection):
    """One client and its requests, one after the other."""

    _edge: HttpEdge

    def __init__(self, edge: HttpEdge, sock: Any, peer: str, full: bool) -> None:
        super().__init__(edge, sock, peer, full)
        # What cheroot's request wants of its connection.
        self.rfile = io.BufferedReader(_Reader(self), _READ)
        self.wfile = self
        self._deadline = 0.0
        self._keep = True

    def write(self, data: bytes) -> None:
        """Sends what cheroot answers to requests that it does not understand."""
        self._send_all(data)

    def read_into(self, buffer: Any) -> int:
        """What has arrived; waits for it. 0 when the client has said its last, or the server drains."""
        while True:
            try:
                return int(self._sock.recv_into(buffer))
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self._wait(select.POLLIN, self._deadline):
                    return 0
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, self._deadline)

    def _converse(self, deadline: float) -> None:
        self._deadline = deadline
        self._start_tls(deadline)
        if self.full:
            self._keep = False
            detail = f"this server takes {self._edge.limits.connections} connections at once; try again later"
            self._answer(
                None, _json(503, {"error": "overloaded", "detail": detail}, (("retry-after", _RETRY_AFTER),))
            )
        while self._keep and not self._edge.draining.is_set():
            asked = self._asked()
            if asked is None:
                break
            self._keep = not (asked.close_connection or _has_body(asked))
            self._respond(asked)
            self._deadline = time.monotonic() + self._edge.limits.handshake
        self._farewell()

    def _asked(self) -> Any:
        """The next request; None when there is none, or it got its answer already."""
        asked = HTTPRequest(self._edge.settings, self, proxy_mode=True)  # takes a whole URL as well as a path
        try:
            asked.parse_request()
        except OSError:
            raise
        except Exception as error:  # bytes that the parser did not foresee: not a reason to say anything in the log
            log.debug("%s: no request: %r", self.peer, error)
            self._keep = False
            self._answer(None, _json(400, {"error": "bad_request", "detail": "this is not a request that makes sense"}))
            return None
        return asked if asked.ready else None

    def _respond(self, asked: Any) -> None:
        path, query = _target(asked.uri)
        if path != b"/v1/health":
            reason = self._edge.authenticate(asked.inheaders.get(b"Authorization", b""))
            if reason is not None:
                answer = _json(401, {"error": "unauthorized", "detail": reason}, (("www-authenticate", "Bearer"),))
                self._answer(asked, answer)
                return
        prefix = b"/v1/streams/"
        if asked.method == b"GET" and path.startswith(prefix):
            self._stream(asked, path[len(prefix) :].decode("utf-8", "replace"), query)
        else:
            self._answer(asked, self._page(asked, path.decode("utf-8", "replace")))

    def _page(self, asked: Any, path: str) -> _Answer:
        """Everything that is not a stream."""
        if asked.method == b"GET":
            if path == "/v1/health":
                return _json(200, {"status": "SERVING"})
            if path == "/v1/datasets":
                return _json(200, [_described(dataset) for dataset in self._edge.catalog])
            if path.startswith("/v1/datasets/"):
                return self._dataset(path[len("/v1/datasets/") :])
            if path == "/metrics":
                return _Answer(200, self._edge.status.metrics(), "text/plain; version=0.0.4; charset=utf-8")
            if path == "/":
                host = asked.inheaders.get(b"Host", b"").decode("utf-8", "replace")
                page = status_page(self._edge.catalog, self._edge.status.processes(), self._edge.offers, host)
                return _Answer(200, page.encode(), "text/html; charset=utf-8")
        return _json(404, {"error": "not_found", "path": path})

    def _dataset(self, name: str) -> _Answer:
        try:
            return _json(200, _described(self._edge.catalog[name]))
        except UnknownDataset:
            return _json(404, {"error": "unknown_dataset", "dataset_id": name})

    def _head(self, asked: Any, status: int, headers: _Headers) -> bytes:
        """A status line and headers. Answers to what could not be read are in the newest version."""
        protocol = "HTTP/1.1" if asked is None else asked.response_protocol
        if not self._keep and protocol == "HTTP/1.1":
            headers += (("connection", "close"),)
        elif self._keep and protocol == "HTTP/1.0":
            headers += (("connection", "Keep-Alive"),)
        lines = [f"{protocol} {status} {_REASONS[status]}", *(f"{name}: {value}" for name, value in headers)]
        lines.append(f"date: {email.utils.formatdate(usegmt=True)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _answer(self, asked: Any, answer: _Answer) -> None:
        head = self._head(
            asked, answer.status,
            (("content-type", answer.content_type), *answer.headers, ("content-length", len(answer.body))),
        )  # fmt: skip
        self._send_all(head if asked is not None and asked.method == b"HEAD" else head + answer.body)

    def _stream(self, asked: Any, name: str, query: bytes) -> None:
        try:
            self._edge.catalog[name]  # whether there is such a dataset comes before what is asked of it
            plan = Plan(self._edge.catalog, parse_query(name, query))
            stream = DecodedStream(plan, self._edge.memory, Lines())
        except UnknownDataset:
            self._answer(asked, _json(404, {"error": "unknown_dataset", "dataset_id": name}))
            return
        except (ShuflrError, OSError, MemoryError) as error:
            self._answer(asked, _failure(error))
            return
        chunked = asked.response_protocol == "HTTP/1.1"
        trailers = chunked and b"trailers" in asked.inheaders.get(b"Te", b"").lower()
        if not chunked:
            self._keep = False
        head = self._head(asked, 200, _stream_headers(stream, chunked, trailers))
        body = _Body(head, chunked, core.Xxh3() if trailers else None)
        try:
            with self._edge.live.showing(stream, "http", self.peer) as live:
                complete = self._run_stream(stream, live, body)
                if complete:
                    body.end(stream.records)
                    self._send_pending(body)
                    return
        except (ShuflrError, MemoryError, OSError) as error:
            if isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
                raise
            log.warning("%s: %s: %s", self.peer, name, error)
            if not body.started:
                self._answer(asked, _failure(error))
                return
        # Broken off: nothing follows, so the chunk that was to come is missing. Without chunks only a reset tells it.
        self._keep = False
        if not chunked:
            self._reset_at_close()
            raise ConnectionAbortedError("the stream broke off")

    def _run_stream(self, stream: Stream, live: LiveStream, body: _Body) -> bool:
        """Sends the blocks as the client takes them. False when the server drained before the end."""
        all_taken = True
        encrypted = isinstance(self._sock, ssl.SSLSocket)

        def write(view: memoryview) -> int:
            nonlocal all_taken
            if not view:  # an empty chunk would be the last
                return 0
            view = body.next(view)
            if encrypted or not body.pending:
                count = self._write(body.pending) if body.pending else 0
                if count == len(body.pending):
                    count += self._write(view)
            else:
                count = self._write_both(body.pending, view)
            all_taken = count == len(body.pending) + len(view)
            return body.sent(count, view)

        turns = stream.turns
        self._listening = False  # whatever the client says now is for later
        turns.enter()
        try:
            while True:
                if not all_taken or not stream.in_hand:
                    turns.leave()
                    self._wait_for_client(live)
                if stream.between and self._edge.draining.is_set():
                    return False
                all_taken = True
                if not stream.offer(write):
                    return True
        finally:
            turns.leave()
            self._listening = True

    def _write_both(self, first: bytes, view: memoryview) -> int:
        try:
            return int(self._sock.sendmsg([first, view]))
        except BlockingIOError:
            return 0

    def _send_pending(self, body: _Body) -> None:
        """The end of a body goes out however long the client pauses, like everything before it."""
        stall = self._edge.limits.stall
        while body.pending:
            body.sent(self._write(body.pending), memoryview(b""))
            if body.pending:
                self._wait(select.POLLOUT, None if stall is None else time.monotonic() + stall)


def _target(uri: bytes) -> "tuple[bytes, bytes]":
    """The path as it stands in a request, nothing decoded, and the query."""
    if not uri.startswith(b"/"):
        uri = b"/" + uri.partition(b"://")[2].partition(b"/")[2]
    path, _, query = uri.partition(b"?")
    return path, query


def _has_body(asked: Any) -> bool:
    """Whether a request has a body, which nobody reads here."""
    return bool(asked.chunked_read) or asked.inheaders.get(b"Content-Length", b"0").strip() != b"0"


def _described(dataset: Any) -> "dict[str, str]":
    return {"dataset_id": dataset.id, "fingerprint": dataset.label}


def _stream_headers(stream: Stream, chunked: bool, trailers: bool) -> _Headers:
    plan, asked = stream.plan, stream.plan.request
    headers: _Headers = (
        ("content-type", "application/x-ndjson; charset=utf-8"),
        ("shuflr-effective-seed", asked.seed),
        ("shuflr-fingerprint", plan.dataset.label),
        ("shuflr-shuffle", asked.shuffle),
    )
    if stream.resumed_at is not None:
        headers += (("shuflr-resumed-at", stream.resumed_at),)
    if plan.total_records is not None:
        headers += (("shuflr-total-records", plan.total_records),)
    if chunked:
        headers += (("transfer-encoding", "chunked"),)
    if trailers:
        headers += (("trailer", "shuflr-records, shuflr-xxh3"),)
    return headers
