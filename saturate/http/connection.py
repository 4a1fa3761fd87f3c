"""One blocking attempt over one kept-alive connection.

A `Connection` belongs to one thread; `interrupt()` is the one method for others, and shuts the socket so that
the owner's blocked call returns at once, whether it was connecting, sending or waiting for an answer.

Invariant: after any failure, or an answer that was not read to its end, the socket is closed; the next
attempt opens a new one. A kept-alive connection that the server closed before the first byte of an answer is
the server's right (RFC 9112, 9.3.1): the request is sent once more on a fresh connection, silently.

urllib3 connects, shakes hands, goes through proxies, makes a request's head and reads what is not plain. A request with
the headers of the one before, and a plain answer (head.py), pass it by: the threads of a run share one interpreter,
and what a row does not spend in it another thread can. For the same reason a plain socket's time-outs are the kernel's:
Python's own are a system call more for each wait, and a change of threads with it.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union
from urllib.parse import unquote

import urllib3.exceptions
from urllib3._collections import HTTPHeaderDict
from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.response import HTTPResponse
from urllib3.util import Url, make_headers

from saturate.http.endpoint import Endpoint
from saturate.http.errors import AttemptFailed, FatalTransportError, Interrupted
from saturate.http.head import Head, read_head

CONNECT_TIMEOUT_S = 30.0
"""For name resolution's addresses each, TLS handshake and sending; a healthy server accepts in milliseconds."""

BODY_IDLE_S = 60.0
"""Silence inside a body whose headers have arrived. A server that streams says something within a minute."""

MAX_BODY_BYTES = 1 << 30
"""More than this for one row is not an answer but a fault, and would end the process by memory."""

_ENDLESS = "the answer did not end in time"
_READ_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16
_TIMEVAL = struct.Struct("@ll")
# One class from Python 3.10 on; and what the kernel says when a wait on a plain socket has been long enough.
_TIMEOUTS = (TimeoutError, socket.timeout, BlockingIOError)


@dataclass(frozen=True)
class Answer:
    """A whole response: status, headers (case-insensitive) and decoded body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _FinalResponse(http.client.HTTPResponse):
    """A response after all its interim ones. http.client skips 100 alone; taking a 102 or 103 for the answer would
    leave the real one on the connection, for the next request to find."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if not 100 < status < 200 or status == http.client.SWITCHING_PROTOCOLS:
                return version, status, reason
            http.client.parse_headers(self.fp)

    def flush(self) -> None:
        """Nothing: what is only read holds nothing back. The inherited one fails where the connection was cut."""


class _Rest(io.RawIOBase):
    """What a connection still has to say, behind what has been taken from it already; http.client reads from this."""

    def __init__(self, taken: bytes, sock: Any):
        self._taken = memoryview(taken)
        self._sock = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, _RECEIVE_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._taken:
            return int(self._sock.recv_into(buffer))
        size = min(len(buffer), len(self._taken))
        buffer[:size], self._taken = self._taken[:size], self._taken[size:]
        return size


def _timeval(seconds: float) -> bytes:
    """A C `struct timeval`; never zero, which would mean for ever."""
    return _TIMEVAL.pack(int(seconds), max(int(seconds % 1 * 1e6), 0 if seconds >= 1 else 1))


class _OneSegment:
    """Sends a request's head and body in one piece: one system call and one packet for most requests.

    urllib3 sends them apart. Also keeps a second descriptor of its socket, by which another thread can shut it in
    every phase: while it connects, shakes hands (TLS then has taken the first one over) and waits.
    """

    twin: Optional[socket.socket] = None
    _held: Optional[list[bytes]] = None
    _bides_s: Optional[float] = None
    _kernel_bides = False

    def shut(self) -> None:
        """Wakes the owner of the connection, wherever it blocks. The caller holds the lock that guards `let_go`."""
        if self.twin is not None:
            try:
                self.twin.shutdown(socket.SHUT_RDWR)
            except OSError:
                # Not connected, or no longer: then nobody blocks on it.
                pass

    def let_go(self) -> None:
        """Closes the second descriptor; the connection is only really closed with it."""
        twin, self.twin = self.twin, None
        if twin is not None:
            twin.close()

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)  # type: ignore[misc]
        else:
            self._held.append(data)

    def message(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """A request's bytes, head and body, as urllib3 makes them."""
        held: list[bytes] = []
        self._held = held
        try:
            self.request(  # type: ignore[attr-defined]
                method, target, body=body, headers=headers, preload_content=False, decode_content=True
            )
        finally:
            self._held = None
            # It is sent and answered without http.client, which need not wait for the answer to make the next.
            self._HTTPConnection__state = "Idle"
            # urllib3 has put its own time-out on the socket.
            self._kernel_bides = False
        return b"".join(held)

    def bide_sending(self) -> None:
        """From now on no wait to send takes longer than a healthy server needs; _TIMEOUTS then."""
        sock: Any = self.sock  # type: ignore[attr-defined]
        if type(sock) is not socket.socket:
            sock.settimeout(CONNECT_TIMEOUT_S)
        elif not self._kernel_bides:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(CONNECT_TIMEOUT_S))
            self._kernel_bides = True

    def bide(self, seconds: float) -> None:
        """From now on no wait to receive takes longer; _TIMEOUTS then."""
        sock: Any = self.sock  # type: ignore[attr-defined]
        if not self._kernel_bides:
            sock.settimeout(seconds)
        elif self._bides_s != seconds:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))
            self._bides_s = seconds

    def is_fresh(self) -> bool:
        """Whether the server has neither closed the connection nor said anything since the last answer."""
        sock: Any = self.sock  # type: ignore[attr-defined]
        if not self._kernel_bides:
            return bool(self.is_connected)  # type: ignore[attr-defined]
        try:
            sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def answer_in_full(self, method: str, taken: bytes) -> HTTPResponse:
        """The answer of any kind that begins with the bytes `taken`; its body is still to be read."""
        raw: Any = self.response_class(_Rest(taken, self.sock), method=method)  # type: ignore[attr-defined]
        raw.begin()
        headers = HTTPHeaderDict(raw.msg.items())
        return HTTPResponse(
            raw,
            headers=headers,
            status=raw.status,
            version=raw.version,
            reason=raw.reason,
            preload_content=False,
            decode_content=True,
            original_response=raw,
            request_method=method,
        )

    def _new_conn(self) -> socket.socket:
        host, port = self._dns_host, self.port  # type: ignore[attr-defined]
        failure: Optional[OSError] = None
        for family, kind, proto, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            sock = socket.socket(family, kind, proto)
            self.let_go()
            self.twin = sock.dup()
            try:
                sock.settimeout(CONNECT_TIMEOUT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # Without probes, a peer that vanished (power, NAT) looks like a long generation for ever.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.connect(address)
                return sock
            except OSError as exc:
                failure = exc
                sock.close()
        raise failure or OSError(f"no address for {host}")


class _Plain(_OneSegment, HTTPConnection):
    response_class = _FinalResponse


class _Tls(_OneSegment, HTTPSConnection):
    response_class = _FinalResponse


_Wire = Union[_Plain, _Tls]


class Connection:
    """One thread's connection to an endpoint, opened at first use and kept alive.

    `busy_since` is the monotonic time at which the attempt under way began, None between attempts: a watching
    thread sees by it attempts that outlive every time-out of the socket (a body that arrives byte by byte), and
    calls `expire()`.
    """

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._wire: Optional[_Wire] = None
        self._interrupted = False
        self._overdue = False
        self._answered = False
        # The bytes of a request's head before and behind the length of its body, for the request line and headers that
        # they belong to.
        self._head_of: tuple[str, str, Optional[Mapping[str, str]]] = ("", "", None)
        self._head = (b"", b"")
        self.busy_since: Optional[float] = None

    def send(self, method: str, route: str, body: bytes, headers: Mapping[str, str], read_timeout_s: float) -> Answer:
        """One request, one answer. Raises AttemptFailed, or Interrupted once `interrupt()` was called."""
        self.busy_since = time.monotonic()
        self._overdue = self._answered = False
        try:
            wire = self._kept_alive()
            reused = wire is not None
            try:
                return self._attempt(wire or self._open(), method, route, body, headers, read_timeout_s)
            except _ClosedBeforeAnswer:
                self.close()
                if not reused or self._interrupted or self._overdue:
                    raise
                return self._attempt(self._open(), method, route, body, headers, read_timeout_s)
        except (Interrupted, FatalTransportError):
            self.close()
            raise
        except Exception as exc:
            self.close()
            if self._interrupted:
                raise Interrupted() from None
            failure = AttemptFailed("ReadTimeout", _ENDLESS) if self._overdue else _failure(exc)
            if failure is None:
                raise
            failure.answered = self._answered
            raise failure from exc
        except BaseException:
            # Ctrl-C in the middle of an exchange: what is left on the wire belongs to nobody.
            self.close()
            raise
        finally:
            self.busy_since = None

    def interrupt(self) -> None:
        """Called from another thread: end the attempt under way, and every later one, with Interrupted."""
        self._interrupted = True
        self._shut()

    def expire(self) -> None:
        """Called from another thread: end the attempt under way as timed out."""
        self._overdue = True
        self._shut()

    def close(self) -> None:
        """Closes the socket; the next attempt opens another."""
        wire = self._wire
        if wire is not None:
            self._wire = None
            wire.close()
            with self._lock:
                wire.let_go()

    def _shut(self) -> None:
        with self._lock:
            wire = self._wire
            if wire is not None:
                wire.shut()

    def _kept_alive(self) -> Optional[_Wire]:
        """The connection of the last attempt if the server has not closed it since."""
        wire = self._wire
        if wire is not None and not wire.is_fresh():
            self.close()
            return None
        return wire

    def _attempt(
        self, wire: _Wire, method: str, route: str, body: bytes, headers: Mapping[str, str], read_timeout_s: float
    ) -> Answer:
        try:
            message = self._message(wire, method, route, body, headers)
            wire.bide_sending()
            wire.sock.sendall(message)
        except (BrokenPipeError, ConnectionResetError) as exc:
            early = self._early_answer(wire, method)
            if early is not None:
                return early
            raise _ClosedBeforeAnswer(str(exc)) from exc
        except _TIMEOUTS as exc:
            raise AttemptFailed("WriteTimeout", "the server stopped reading the request") from exc
        try:
            wire.bide(read_timeout_s)
            taken = wire.sock.recv(_RECEIVE_BYTES)
            if not taken:
                raise _ClosedBeforeAnswer("the server closed the connection")
            head = read_head(taken)
            if head is not None and head.length <= _READ_BYTES:
                self._answered = True
                return self._read_plain(wire, head, taken, read_timeout_s)
            response = wire.answer_in_full(method, taken)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as exc:
            raise _ClosedBeforeAnswer(str(exc)) from exc
        except _TIMEOUTS as exc:
            raise AttemptFailed("ReadTimeout", f"no answer in {read_timeout_s:g} s") from exc
        self._answered = True
        return self._read(wire, response, read_timeout_s)

    def _message(self, wire: _Wire, method: str, route: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        of_method, of_route, of_headers = self._head_of
        if headers is not of_headers or route != of_route or method != of_method or not body:
            message = wire.message(method, self._endpoint.target(route), body, headers)
            before, told, behind = message.partition(b"\r\nContent-Length: %d\r\n" % len(body))
            if body and told:
                self._head_of = (method, route, headers)
                self._head = (before + b"\r\nContent-Length: ", b"\r\n" + behind[: len(behind) - len(body)])
            return message
        return b"%b%d%b%b" % (self._head[0], len(body), self._head[1], body)

    def _early_answer(self, wire: _Wire, method: str) -> Optional[Answer]:
        """A server that refuses a large body answers (413, 401) and closes before it has read it all."""
        try:
            wire.bide(1.0)
            return self._read(wire, wire.answer_in_full(method, b""), 1.0)
        except Exception:
            return None

    def _read_plain(self, wire: _Wire, head: Head, taken: bytes, read_timeout_s: float) -> Answer:
        body = taken[head.start :]
        if len(body) < head.length:
            pieces, missing = [body], head.length - len(body)
            try:
                wire.bide(min(read_timeout_s, BODY_IDLE_S))
                while missing > 0:
                    piece = wire.sock.recv(min(missing, _RECEIVE_BYTES))
                    if not piece:
                        raise AttemptFailed("RemoteProtocolError", f"the body ended {missing} bytes before its end")
                    pieces.append(piece)
                    missing -= len(piece)
            except _TIMEOUTS as exc:
                raise AttemptFailed("ReadTimeout", "the body stopped arriving") from exc
            except OSError as exc:
                raise AttemptFailed("ReadError", f"{type(exc).__name__}: {exc}") from exc
            body = b"".join(pieces)
        if head.closes or len(body) > head.length:
            # What is behind an answer is no answer to the next request.
            self.close()
            body = body[: head.length]
        return Answer(head.status, head.headers, body)

    def _read(self, wire: _Wire, response: HTTPResponse, read_timeout_s: float) -> Answer:
        if wire.sock is not None:
            wire.bide(min(read_timeout_s, BODY_IDLE_S))
        try:
            if response.length_remaining is not None and response.length_remaining <= _READ_BYTES:
                body = response.read()
            else:
                body = self._read_long(response)
        except (*_TIMEOUTS, urllib3.exceptions.ReadTimeoutError) as exc:
            raise AttemptFailed("ReadTimeout", "the body stopped arriving") from exc
        raw: Any = response._original_response
        if raw.will_close or response.headers.get("connection", "").lower() == "close" or response.status < 200:
            self.close()
        return Answer(response.status, response.headers, body)

    @staticmethod
    def _read_long(response: HTTPResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            piece = response.read(_READ_BYTES)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise AttemptFailed("RemoteProtocolError", f"the body is longer than {MAX_BODY_BYTES} bytes")

    def _open(self) -> _Wire:
        end, via = self._endpoint, self._endpoint.proxy
        wire = _through_proxy(end, via) if via is not None else _direct(end)
        self._wire = wire
        if self._interrupted:
            raise Interrupted()
        try:
            wire.connect()
        except ssl.SSLCertVerificationError as exc:
            raise FatalTransportError(
                f"{end.host}:{end.port} showed a certificate that is not trusted ({exc.verify_message}); "
                "set SSL_CERT_FILE to the file of the authority that signed it"
            ) from exc
        except (*_TIMEOUTS, urllib3.exceptions.ConnectTimeoutError) as exc:
            raise AttemptFailed("ConnectTimeout", f"no connection in {CONNECT_TIMEOUT_S:g} s") from exc
        except Exception as exc:
            raise AttemptFailed("ConnectError", f"{end.host}:{end.port}: {exc}") from exc
        if self._interrupted:
            raise Interrupted()
        return wire


def _direct(end: Endpoint) -> _Wire:
    if end.scheme == "https":
        return _Tls(end.host, end.port, timeout=CONNECT_TIMEOUT_S, ssl_context=end.tls)
    return _Plain(end.host, end.port, timeout=CONNECT_TIMEOUT_S)


def _through_proxy(end: Endpoint, via: Url) -> _Wire:
    """HTTPS goes through a CONNECT tunnel; plain HTTP is forwarded (the request line then names the whole address)."""
    secure = via.scheme == "https"
    host = str(via.host).strip("[]")
    port = via.port or (443 if secure else 80)
    if end.scheme == "http":
        kind = _Tls if secure else _Plain
        return kind(host, port, timeout=CONNECT_TIMEOUT_S)
    config = ProxyConfig(None, use_forwarding_for_https=False, assert_hostname=None, assert_fingerprint=None)
    wire = _Tls(host, port, timeout=CONNECT_TIMEOUT_S, ssl_context=end.tls, proxy=via, proxy_config=config)
    wire.set_tunnel(end.host, end.port, headers=proxy_authorization(via), scheme="https" if secure else "http")
    return wire


def proxy_authorization(via: Url) -> dict[str, str]:
    """The header that a proxy with credentials in its address wants; empty without them."""
    return make_headers(proxy_basic_auth=unquote(via.auth)) if via.auth else {}


class _ClosedBeforeAnswer(Exception):
    """The server closed the connection and not one byte of an answer had arrived."""


def _failure(exc: Exception) -> Optional[AttemptFailed]:
    """`exc` as an AttemptFailed; None for what is no matter of the wire, which must surface as it is."""
    if isinstance(exc, AttemptFailed):
        return exc
    if isinstance(exc, _ClosedBeforeAnswer):
        return AttemptFailed("RemoteProtocolError", "the server closed the connection without an answer")
    if isinstance(exc, (urllib3.exceptions.DecodeError, http.client.HTTPException, urllib3.exceptions.HTTPError)):
        return AttemptFailed("RemoteProtocolError", f"{type(exc).__name__}: {exc}")
    if isinstance(exc, OSError):
        return AttemptFailed("ReadError", f"{type(exc).__name__}: {exc}")
    return None
