"""One connection, from its first request to its end: read, judge, work, answer.

A `Conversation` runs in a thread of its own and touches nobody else's socket. What all conversations share is a
`House`: the settings, the work, the ledger, and the faults in force.

Invariants: a request is in the ledger's `received` before anything is decided about it, and its answer is in the
ledger before the last byte leaves, so a client that has seen an answer finds it recorded. An answer is one `send`,
unless a fault or a stream says otherwise.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from saturate.simulate import metrics, responses, wire
from saturate.simulate.faults import CLEAN, Fault, Faults, Judge, Verdict, retry_after
from saturate.simulate.ledger import CUT, GIVEN_UP, Ledger, request_id
from saturate.simulate.lengths import Lengths
from saturate.simulate.responses import Ask
from saturate.simulate.wire import Gone, Head, Reader, Refused
from saturate.simulate.work import Ticket, Work

PROBE_HEADER = "x-saturate-probe"  # a client asking whether the server is back: answered, but nobody's row
_JSON = "application/json"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_SPOILT_TYPES = {"html": "text/html; charset=utf-8", "text": "text/plain; charset=utf-8"}
_STREAM_PERIOD_S = 0.05  # a streamed answer sends what has been made this often
_DRIP_PERIOD_S = 0.05
_BODILESS = (204, 304)  # no client reads a body after these
_LINGER_S = 1.0  # how long the rest of a refused request is read away, so that its sender can read the refusal

Headers = list[tuple[str, str]]


@dataclass
class House:
    """What every connection of one server shares."""

    work: Work
    ledger: Ledger
    lengths: Lengths
    model: str
    max_model_len: Optional[int]
    metrics: bool
    health: bool
    judge: Judge
    stats: Callable[[], dict[str, Any]]
    set_faults: Callable[[Faults], None]
    seed: int
    started: int = field(default_factory=lambda: int(time.time()))
    stopping: threading.Event = field(default_factory=threading.Event)
    judging: threading.Lock = field(default_factory=threading.Lock)  # a judge counts
    at_work: dict[Ticket, socket.socket] = field(default_factory=dict)  # whom to wake when a client leaves

    def verdict(self, name: str, route: str, body: bytes) -> Verdict:
        if not self.judge.judges:
            return CLEAN
        with self.judging:
            return self.judge.verdict(time.monotonic(), name, route, body)

    def length(self, ask: Ask, name: str) -> int:
        """Tokens of the answer: what the request asks for. A distribution is not stretched, only cut, by it."""
        if not ask.generates:
            return 1
        if ask.max_tokens is not None and self.lengths.fixed:
            return ask.max_tokens
        natural = self.lengths.draw(f"{self.seed}/{name}")
        return natural if ask.max_tokens is None else min(natural, ask.max_tokens)


class _Over(Exception):
    """The connection ends here, without another byte."""


class Conversation:
    """Serves one accepted socket until it ends, then calls `ended`, which closes it. `run` never raises."""

    def __init__(self, house: House, sock: socket.socket, ended: Callable[[Conversation], None]) -> None:
        self.sock = sock
        self.reset = False  # the connection ends with a RST
        self._house = house
        self._ended = ended
        self._reader = Reader(sock.recv)
        self._requests = 0
        self._keep = True  # the connection outlives the answer being given
        self._announced = False  # it does not, and the answer says so
        self._name: Optional[str] = None  # whose answer goes into the ledger
        self._extra: Headers = []  # headers of the answer beside its own

    def run(self) -> None:
        try:
            while self._keep:
                request = self._next_request()
                if request is None:
                    break
                try:
                    self._serve(*request)
                except Refused as refused:
                    self._refuse(refused)
        except (_Over, Gone, OSError):
            pass
        finally:
            self._ended(self)

    def _next_request(self) -> Optional[tuple[Head, bytes]]:
        self._name = None
        self._extra = []
        try:
            head = self._next_head()
            if head is None:
                return None
            if head.headers.get("expect", "").lower() == "100-continue":
                self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            return head, self._reader.body(head)
        except Refused as refused:
            # Where the next request begins is not known.
            self._keep = False
            self._announced = True
            self._refuse(refused)
            self._read_away()
            return None

    def _next_head(self) -> Optional[Head]:
        limit = self._house.judge.keep_alive(time.monotonic())
        if limit is None:
            head = self._reader.head()
        else:
            self.sock.settimeout(limit.seconds or None)
            head = self._reader.head()  # a timeout is an OSError and ends the connection
            self.sock.settimeout(None)
        if head is not None:
            self._requests += 1
            self._keep = head.keep_alive
            self._announced = not head.keep_alive
            if limit is not None and 0 < limit.requests <= self._requests:
                self._keep = False
                self._announced = not limit.silent
        return head

    def _read_away(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)
        self.sock.settimeout(_LINGER_S)
        give_up = time.monotonic() + _LINGER_S
        while self.sock.recv(1 << 16) and time.monotonic() < give_up:
            pass

    def _serve(self, head: Head, body: bytes) -> None:
        path = head.path
        if head.method not in ("GET", "POST"):
            # A client reads no body in answer to HEAD, so the connection does not go on after one.
            self._keep, self._announced = False, True
            raise Refused(405, f"{head.method} is not served here", [("Allow", "GET, POST")])
        if path.startswith("/simulate/"):
            return self._control(head, body)
        if path in responses.ROUTES:
            if head.method != "POST":
                raise Refused(405, f"{path} wants POST", [("Allow", "POST")])
            return self._work(head, body)
        self._refuse_if_down()
        if head.method != "GET":
            raise Refused(404, f"no route {head.method} {path}")
        if path == "/v1/models":
            house = self._house
            return self._send(200, _JSON, responses.models_body(house.model, house.max_model_len, house.started))
        if path == "/metrics" and self._house.metrics:
            finished = len(self._house.ledger.served)
            return self._send(200, _TEXT, metrics.exposition(self._house.work.gauges(), finished, self._house.model))
        if path == "/health" and self._house.health:
            return self._send(200, _JSON, b"")
        raise Refused(404, f"no route GET {path}")

    def _control(self, head: Head, body: bytes) -> None:
        """The simulation's own routes. No fault touches them, except that nobody listens during some outages."""
        if (head.method, head.path) == ("GET", "/simulate/stats"):
            return self._send(200, _JSON, json.dumps(self._house.stats()).encode())
        if (head.method, head.path) != ("POST", "/simulate/faults"):
            raise Refused(404, f"no route {head.method} {head.path}")
        try:
            given = json.loads(body)
            faults = Faults(*given.get("faults", ()), seed=int(given.get("seed", 0)))
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(400, f'pass {{"faults": ["kind:name=value,..."], "seed": 0}}: {error}')
        self._house.set_faults(faults)
        self._send(200, _JSON, json.dumps({"faults": repr(faults)}).encode())

    def _refuse_if_down(self) -> None:
        outage = self._house.judge.outage(time.monotonic())
        if outage is not None:
            raise Refused(outage.status, "The server is not ready")

    def _work(self, head: Head, body: bytes) -> None:
        house = self._house
        route = head.path
        named = head.headers.get("x-request-id")
        name = request_id(named, route, body)
        if named:
            self._extra.append(("x-request-id", named))
        if PROBE_HEADER not in head.headers:
            self._name = name
            house.ledger.arrived(name)
        self._refuse_if_down()
        verdict = house.verdict(name, route, body)
        if verdict.instead is not None and not verdict.instead.late:
            return self._instead(verdict.instead)
        ask = responses.read_ask(route, head.headers.get("content-type", ""), body, house.model)
        tokens = house.length(ask, name)
        self._admit_by_length(ask, tokens)
        self._admit_by_quota(ask, tokens)
        ticket = Ticket(ask.prompt_tokens, tokens)
        self._admit_by_cap(ticket)
        house.at_work[ticket] = self.sock
        try:
            if ask.stream and verdict.instead is None:
                return self._stream(ask, ticket, verdict.after)
            self._finish(ticket)
        finally:
            del house.at_work[ticket]
        if verdict.instead is not None:
            return self._instead(verdict.instead)
        self._deliver(responses.answer_body(ask, tokens, int(time.time())), verdict.after)

    def _admit_by_length(self, ask: Ask, tokens: int) -> None:
        longest = self._house.max_model_len
        if longest is not None and ask.prompt_tokens + tokens > longest:
            raise Refused(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{ask.prompt_tokens + tokens} ({ask.prompt_tokens} in the prompt, {tokens} in the completion).",
            )

    def _admit_by_quota(self, ask: Ask, tokens: int) -> None:
        house = self._house
        if not house.judge.charges:
            return
        with house.judging:
            refusal, headers = house.judge.charge(time.monotonic(), ask.prompt_tokens + tokens)
        self._extra += headers
        if refusal is not None:
            raise Refused(refusal.status, refusal.message, retry_after(refusal.retry_after, time.time()))

    def _admit_by_cap(self, ticket: Ticket) -> None:
        cap = self._house.judge.cap(time.monotonic())
        if not self._house.work.submit(ticket, None if cap is None else cap.requests) and cap is not None:
            raise Refused(cap.status, "Model is overloaded", retry_after(cap.retry_after, time.time()))

    def _finish(self, ticket: Ticket) -> None:
        """Wait for the work to be done. Raises Refused when it waited too long for its turn."""
        work = self._house.work
        limit = self._house.judge.queue_timeout(time.monotonic())
        done = work.wait(ticket, None if limit is None else limit.seconds)
        if not done and limit is not None and work.waiting(ticket):
            work.abort(ticket)
            raise Refused(limit.status, f"not started within {limit.seconds:g} s")
        if not done:
            work.wait(ticket)
        self._leave_if_given_up(ticket)

    def _leave_if_given_up(self, ticket: Ticket) -> None:
        if ticket.aborted:
            self._record(GIVEN_UP)
            raise _Over

    def _instead(self, fault: Fault) -> None:
        """An answer of a fault's own, or none."""
        if fault.kind == "hang":
            self._hang()
        if fault.kind == "drop":
            if fault.late:
                self._record(CUT)
            self._drop(fault)
        if fault.kind == "redirect":
            self._extra.append(("Location", fault.location))
            raise Refused(fault.status, "moved")
        raise Refused(fault.status, fault.body or "A simulated error", retry_after(fault.retry_after, time.time()))

    def _hang(self) -> None:
        while self.sock.recv(1 << 16):  # until the client, or the end of the simulation, closes the connection
            pass
        raise _Over

    def _drop(self, fault: Fault) -> None:
        self.reset = fault.reset
        if fault.reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _Over

    def _deliver(self, body: bytes, spoilers: Sequence[Fault]) -> None:
        """Send a good answer, or what the faults make of it."""
        if not spoilers:
            return self._send(200, _JSON, body)
        by_kind = {fault.kind: fault for fault in spoilers}
        status, kind = 200, _JSON
        if "delay" in by_kind:
            self._house.stopping.wait(by_kind["delay"].seconds)
        if "status" in by_kind:
            status = by_kind["status"].status
        if "malformed" in by_kind:
            shape = by_kind["malformed"].shape
            body = responses.malformed(shape, body)
            kind = _SPOILT_TYPES.get(shape, kind)
            if shape == "not-gzip":
                self._extra.append(("Content-Encoding", "gzip"))
        if "gzip" in by_kind:
            body = gzip.compress(body, 1)
            self._extra.append(("Content-Encoding", "gzip"))
        if status in _BODILESS:
            body = b""
        headers = [("Content-Type", kind), *self._extra]
        if "chunked" in by_kind and body:
            half = len(body) // 2
            body = b"".join(wire.chunk(part) for part in (body[:half], body[half:]) if part) + wire.LAST_CHUNK
            headers.append(("Transfer-Encoding", "chunked"))
        else:
            headers.append(("Content-Length", str(len(body))))
        opening = wire.head_bytes(status, headers, not self._announced)
        cut, silent = by_kind.get("drop_mid_body"), "hang_after_headers" in by_kind
        self._record(CUT if cut is not None or silent else status)
        if silent:
            self.sock.sendall(opening)
            self._hang()
        if cut is not None:
            self.sock.sendall(opening + body[: len(body) // 2])
            self._drop(cut)
        if "drip" in by_kind:
            self._drip(opening, body, by_kind["drip"].bytes_per_s)
        else:
            self.sock.sendall(opening + body)

    def _drip(self, opening: bytes, body: bytes, bytes_per_s: float) -> None:
        self.sock.sendall(opening)
        size = max(1, int(bytes_per_s * _DRIP_PERIOD_S))
        for start in range(0, len(body), size):
            if self._house.stopping.wait(size / bytes_per_s):
                raise _Over
            self.sock.sendall(body[start : start + size])

    def _stream(self, ask: Ask, ticket: Ticket, spoilers: Sequence[Fault]) -> None:
        """Server-sent events, in chunks, as the tokens are made. Only faults that cut or silence apply."""
        work = self._house.work
        kinds = {fault.kind: fault for fault in spoilers}
        tokens = ticket.output
        text = responses.answer(ask.prompts[0], tokens)
        created = int(time.time())
        headers = [("Content-Type", "text/event-stream"), *self._extra, ("Transfer-Encoding", "chunked")]
        self.sock.sendall(wire.head_bytes(200, headers, not self._announced))
        if "hang_after_headers" in kinds:
            work.abort(ticket)
            self._record(CUT)
            self._hang()
        sent = 0
        piece = b""
        done = False
        while not done:
            done = work.wait(ticket, _STREAM_PERIOD_S)
            self._leave_if_given_up(ticket)
            made = tokens if done else work.made(ticket)
            if "drop_mid_body" in kinds and 2 * made >= tokens:
                work.abort(ticket)
                self._record(CUT)
                self._drop(kinds["drop_mid_body"])
            upto = len(text) * made // tokens
            if upto > sent:
                piece = wire.chunk(responses.stream_event(ask, text[sent:upto], created))
                sent = upto
                if not done:
                    self.sock.sendall(piece)
        self._record(200)
        self.sock.sendall(piece + wire.chunk(responses.stream_end(ask, tokens, created)) + wire.LAST_CHUNK)

    def _record(self, status: int) -> None:
        if self._name is not None:
            self._house.ledger.answered(self._name, status)

    def _refuse(self, refused: Refused) -> None:
        self._extra += refused.headers
        self._send(refused.status, _JSON, responses.error_body(refused.status, refused.message))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._record(status)
        if status in _BODILESS:
            body = b""
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *self._extra]
        self.sock.sendall(wire.head_bytes(status, headers, not self._announced) + body)
