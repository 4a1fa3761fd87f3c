"""AdaptiveClient: one endpoint, a window that adapts to it, and a retry ladder for every request.

`post` blocks its thread: gate (breaker), slot (window), one attempt, and again as the ladder says. Invariants: a
slot is held only while a request is on the wire, never through a backoff or a Retry-After; each thread has one
kept-alive connection of its own; `interrupt` ends a thread's `post` wherever it blocks.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional

from saturate.flow.limiter import AdaptiveLimiter, check_window
from saturate.flow.monitor import TICK_S, Controller
from saturate.flow.overdue import Overdue
from saturate.flow.pacer import Pace, Pacer, Turn, check_pace, likely_tokens
from saturate.flow.scrape import MetricsPage
from saturate.http.breaker import Breaker
from saturate.http.connection import Answer, Connection, proxy_authorization
from saturate.http.endpoint import parse_endpoint
from saturate.http.errors import AttemptFailed, Interrupted
from saturate.http.request import JSON, Encoded, Payload, check_route, encode
from saturate.http.retry import (
    MAX_RETRY_AFTER_S,
    Class,
    GiveUp,
    Ladder,
    classify,
    excerpt,
    retry_after_seconds,
    status_error,
)

_fast_loads: Optional[Callable[[bytes], Any]]
try:
    from orjson import loads as _fast_loads
except ImportError:  # the `fast` extra is optional
    _fast_loads = None

log = logging.getLogger("saturate")

DEFAULT_ROUTE = "/chat/completions"
PROBE_TIMEOUT_S = 30.0

OnTick = Callable[[dict[str, Any]], None]


class _Line:
    """One thread's end of the client: its connection, and the bell that ends its sleeps."""

    def __init__(self, connection: Connection, thread: threading.Thread):
        self.connection = connection
        self.thread = thread
        self.interrupted = False
        self.bell = threading.Event()

    def interrupt(self) -> None:
        self.interrupted = True
        self.bell.set()
        self.connection.interrupt()


class AdaptiveClient:
    """A client for one OpenAI-compatible endpoint that finds its own concurrency.

        with AdaptiveClient("http://localhost:8000/v1", window=Auto()) as client:
            body, error = client.post({"model": "m", "messages": [...]})

    endpoint: base URL; a request goes to endpoint + route. window: see AdaptiveLimiter. headers: sent with every
    request, also to /metrics and in probes (Authorization goes here). read_timeout: seconds of silence before an
    answer's first byte that count as no answer; retries get as long. signal_source: "auto" reads the engine's
    /metrics, "none" never does. on_tick: called with every tick's record. max_retry_after: seconds that one row
    waits, in all, because servers asked it to with Retry-After. max_bytes_in_flight: bytes of request bodies on the
    wire at once (an eighth of this machine's memory by default): large images fill a host before they fill a window.
    pace: a quota to keep to, such as Pace(requests_per_minute=600); one that the server tells is found by itself.

    Attributes: `limiter`, `breaker`, `base` (the endpoint without a trailing slash), `dialect` (the engine
    whose gauges were recognised, or None).

    Raises TypeError or ValueError at the call for an endpoint without a scheme, a window that is a number, and
    the like. Make it before a fork if you like; open it (`with`) in the process that uses it.
    """

    def __init__(
        self,
        endpoint: str,
        window: Optional[Controller] = None,
        headers: Optional[Mapping[str, str]] = None,
        read_timeout: float = 1800.0,
        signal_source: str = "auto",
        on_tick: Optional[OnTick] = None,
        *,
        max_retry_after: float = MAX_RETRY_AFTER_S,
        max_bytes_in_flight: Optional[int] = None,
        pace: Optional[Pace] = None,
        tick_s: float = TICK_S,
    ):
        self._endpoint = parse_endpoint(endpoint)
        check_window(window)
        if signal_source not in ("auto", "none"):
            raise ValueError(f'signal_source must be "auto" or "none", got {signal_source!r}')
        self._read_timeout_s = _positive("read_timeout", read_timeout)
        self._max_retry_after_s = _positive("max_retry_after", max_retry_after)
        self._headers = _merge_headers(self._endpoint.authorization, headers)
        if self._endpoint.proxy is not None and self._endpoint.scheme == "http":
            self._headers.update(proxy_authorization(self._endpoint.proxy))
        self._json_headers = {**self._headers, "Content-Type": JSON}
        page = MetricsPage(self._endpoint.root, self._headers) if signal_source == "auto" else None
        self.base = self._endpoint.base
        self.breaker = Breaker()
        max_bytes = _bytes_in_flight(max_bytes_in_flight)
        self.limiter = AdaptiveLimiter(window, page, on_tick, max_bytes_in_flight=max_bytes, tick_s=tick_s)
        self._page = page
        self._pacer = Pacer(check_pace(pace))
        self._pacer_lock = threading.Lock()
        self.limiter.pace_rpm = self._pacer.requests_per_minute
        self._overdue = Overdue()
        self._last_tick_s = 0.0
        self._lines: dict[int, _Line] = {}
        self._lock = threading.Lock()
        self._pid: Optional[int] = None

    @property
    def dialect(self) -> Optional[str]:
        return self._page.dialect if self._page is not None else None

    def post(
        self, request: Payload, route: str = DEFAULT_ROUTE, on_admit: Optional[Callable[[], None]] = None
    ) -> tuple[Any, Optional[str]]:
        """Sends one request, with retries, and blocks until its end: `(body, None)` or `(None, error)`.

        body is the response's JSON value (None for an empty 204). on_admit is called once, when the request
        first gets a slot. Raises FatalTransportError when the endpoint is down for good, TypeError or ValueError
        for a request that cannot be encoded.
        """
        encoded = encode(request, check_route(route))
        line = self._line()
        ladder = Ladder(self._max_retry_after_s)
        first_failure: Optional[int] = None
        while True:
            outcome = self._attempt(line, encoded, ladder, on_admit)
            if isinstance(outcome, Answered):
                return outcome.value, None
            if first_failure is None:
                first_failure = self.breaker.recoveries
            in_doubt = outcome.counted and self.breaker.recoveries == first_failure
            decision = ladder.after(outcome.kind, outcome.error, outcome.retry_after_s, random.random(), in_doubt)
            if isinstance(decision, GiveUp):
                return None, decision.error
            self._sleep(line, decision.wait_s)

    def _attempt(
        self, line: _Line, encoded: Encoded, ladder: Ladder, on_admit: Optional[Callable[[], None]]
    ) -> Answered | Refused:
        limiter = self.limiter
        turn = self._await_turn(line, encoded) if self._pacer.pacing else None
        while True:
            if self.breaker.is_open or self.breaker.dead is not None:
                with limiter.parked():
                    self.breaker.gate(lambda: self._probe(line, encoded), lambda: line.interrupted)
            serial = limiter.admit(ladder.attempts > 0, len(encoded.body))
            if not self.breaker.is_open:
                break
            limiter.leave(serial)
        try:
            if on_admit is not None and ladder.attempts == 0:
                on_admit()
            started = time.monotonic()
            try:
                answer = line.connection.send(
                    "POST", encoded.route, encoded.body, self._headers_for(encoded), self._read_timeout_s
                )
            except AttemptFailed as exc:
                if not exc.answered:
                    self.breaker.failure(str(exc))
                limiter.observe(ok=False)
                return Refused(Class.TRANSIENT, str(exc), counted=not exc.answered)
            latency_s = time.monotonic() - started
            kind = classify(answer.status)
            if kind is not Class.OK:
                return self._refused(answer, kind, ladder, serial, started)
        finally:
            limiter.leave(serial)
        return self._read(answer, latency_s, started, turn)

    def _refused(self, answer: Answer, kind: Class, ladder: Ladder, serial: int, started: float) -> Refused:
        """Tells window, pacer and breaker what a refusal means to them; called while the slot is still held."""
        status = answer.status
        retry_after_s = retry_after_seconds(answer.headers.get("retry-after"), time.time())
        error = status_error(status, answer.body, answer.headers.get("location"), retried=kind is not Class.FATAL)
        if kind is Class.RATE:
            # With a Retry-After or quota headers it is a contract; without them the server is simply full.
            with self._pacer_lock:
                contract = self._pacer.refused(time.monotonic(), started, serial, retry_after_s, answer.headers)
            self._heed_pacer(0.0)
            self.limiter.observe(ok=False, rate_limited=contract)
        elif status >= 500 or status < 200:
            self.breaker.failure(f"http {status}")
            # A poisonous row answers 500 at every attempt; it must not shrink the window five times.
            if status != 500 or ladder.attempts == 0:
                self.limiter.observe(ok=False)
        return Refused(kind, error, retry_after_s, counted=status >= 500 or status < 200)

    def _read(self, answer: Answer, latency_s: float, started: float, turn: Optional[Turn]) -> Answered | Refused:
        if not answer.body and answer.status != 200:
            value = None
        else:
            try:
                value = _loads(answer.body)
            except ValueError:
                error = f"http {answer.status} after retries: the body is not JSON: {excerpt(answer.body)}"
                return Refused(Class.TRANSIENT, error)
        self.breaker.success()
        tokens = sum(usage_tokens(value))
        self.limiter.observe(ok=True, tokens=tokens, latency_s=latency_s)
        if self._pacer.listening:
            with self._pacer_lock:
                self._pacer.accepted(time.monotonic(), started, tokens, answer.headers, turn)
            self._heed_pacer(0.0)
        return Answered(value)

    def _await_turn(self, line: _Line, encoded: Encoded) -> Turn:
        """Reserves a turn under the quota and waits for it, without a slot."""
        pacer = self._pacer
        cost = likely_tokens(encoded.body) if pacer.counts_tokens else 0.0
        since = time.monotonic()
        with self._pacer_lock:
            turn = pacer.reserve(since, cost)
            wait_s = pacer.wait_s(since, turn)
        while wait_s > 0:
            line.bell.wait(wait_s)
            if line.interrupted:
                raise Interrupted()
            now = time.monotonic()
            with self._pacer_lock:
                wait_s = pacer.wait_s(now, turn)
            self._heed_pacer(now - since)
            since = now
        return turn

    def _heed_pacer(self, waited_s: float) -> None:
        """Records a wait for the pacer, and the quota in force; logs what the pacer has to say."""
        self.limiter.note_pace(waited_s, self._pacer.requests_per_minute)
        while self._pacer.news:
            with self._pacer_lock:
                sentence = self._pacer.news.pop(0) if self._pacer.news else None
            if sentence is not None:
                log.info(sentence)

    def _sleep(self, line: _Line, seconds: float) -> None:
        if seconds > 0:
            with self.limiter.parked():
                line.bell.wait(seconds)
        if line.interrupted:
            raise Interrupted()

    def _probe(self, line: _Line, encoded: Encoded) -> Optional[str]:
        body = json.dumps(
            {
                "model": encoded.model or "readiness-probe",
                "messages": [{"role": "user", "content": "hi"}],
                "input": "hi",
                "max_tokens": 1,
            }
        ).encode()
        headers = {**self._headers, "Content-Type": "application/json", "x-saturate-probe": "breaker"}
        try:
            answer = line.connection.send("POST", encoded.route, body, headers, PROBE_TIMEOUT_S)
        except AttemptFailed as exc:
            return None if exc.answered else str(exc)
        return None if answer.status < 500 else f"http {answer.status}"

    def _headers_for(self, encoded: Encoded) -> dict[str, str]:
        if encoded.content_type is None:
            return self._headers
        if encoded.content_type == JSON:
            # The same mapping each time: a connection that sees it again need not make the head of its request again.
            return self._json_headers
        return {**self._headers, "Content-Type": encoded.content_type}

    # -- threads

    def _line(self) -> _Line:
        # Looked at in every call: a forked child inherits the idents, the sockets and this very object.
        if self._pid != os.getpid():
            self._refuse()
        ident = threading.get_ident()
        line = self._lines.get(ident)
        if line is None or not line.thread.is_alive():
            thread = threading.current_thread()
            line = _Line(Connection(self._endpoint), thread)
            with self._lock:
                stale, self._lines[ident] = self._lines.get(ident), line
            if stale is not None:
                stale.connection.close()
        return line

    def _refuse(self) -> NoReturn:
        if self._pid is None:
            raise RuntimeError("this client is not open: use it inside `with AdaptiveClient(...) as client:`")
        raise RuntimeError(
            "this client was opened in another process, before a fork; "
            "open one inside the process that uses it (in the worker function, not at import)"
        )

    def interrupt(self, threads: Iterable[int]) -> None:
        """Ends `post` in these threads (idents), wherever it blocks; they see an internal exception."""
        idents = set(threads)
        for ident in idents:
            line = self._lines.get(ident)
            if line is not None:
                line.interrupt()
        self.limiter.window.cancel(idents)
        self.breaker.wake()

    def retire(self) -> None:
        """The calling thread is about to end: closes its connection."""
        with self._lock:
            line = self._lines.pop(threading.get_ident(), None)
        if line is not None:
            line.connection.close()

    def _tend_lines(self, limit: int) -> None:
        """After each tick: close what dead threads left, and end attempts that will not be answered any more."""
        now = time.monotonic()
        tick = self.limiter.ticks[-1]
        self._overdue.tick(tick, tick["t"] - self._last_tick_s)
        self._last_tick_s = tick["t"]
        # Waiting for the first byte and for the body may each take read_timeout; beyond both, bytes trickle.
        age_s = min(2 * self._read_timeout_s, self._overdue.age_s(*self.limiter.longest_latency) or math.inf)
        with self._lock:
            dead = [ident for ident, line in self._lines.items() if not line.thread.is_alive()]
            left = [self._lines.pop(ident) for ident in dead]
            lines = list(self._lines.values())
        for line in left:
            line.connection.close()
        for line in lines:
            since = line.connection.busy_since
            if since is not None and now - since > age_s:
                line.connection.expire()

    # -- life

    def __enter__(self) -> AdaptiveClient:
        self.limiter.__enter__()
        self._pacer.start(time.monotonic())
        self._pid = os.getpid()
        self.limiter.subscribe(self._tend_lines)
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], exc: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.limiter.__exit__(kind, exc, trace)
        finally:
            self._pid = None
            with self._lock:
                lines, self._lines = list(self._lines.values()), {}
            for line in lines:
                if line.thread is threading.current_thread():
                    line.connection.close()
                else:
                    line.interrupt()
            if self._page is not None:
                self._page.close()


class Answered:
    """An attempt that succeeded, with the response's JSON value."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


class Refused:
    """An attempt that did not, for the ladder. `counted`: the breaker counts it as the server's failure."""

    __slots__ = ("counted", "error", "kind", "retry_after_s")

    def __init__(self, kind: Class, error: str, retry_after_s: Optional[float] = None, counted: bool = False):
        self.kind = kind
        self.error = error
        self.retry_after_s = retry_after_s
        self.counted = counted


def usage_of(body: Any) -> dict[str, Any]:
    """The `usage` object of a response; empty when it is missing, null or no object."""
    usage = body.get("usage") if isinstance(body, dict) else None
    return usage if isinstance(usage, dict) else {}


def usage_tokens(body: Any) -> tuple[float, float]:
    """(prompt, completion) tokens of a response; what is missing, null, negative or no number counts zero."""
    usage = usage_of(body)
    return token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))


def token_count(value: Any) -> float:
    """`value` if it is a count (a finite number >= 0), else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return 0
    return value


def _loads(body: bytes) -> Any:
    if _fast_loads is not None:
        try:
            return _fast_loads(body)
        except ValueError:
            # orjson is stricter than the contract: NaN, big integers, a byte-order mark. The slow parser decides.
            pass
    return json.loads(body.decode("utf-8-sig"))


def _bytes_in_flight(value: Optional[int]) -> int:
    if value is None:
        return max(64 << 20, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"max_bytes_in_flight must be a number of bytes >= 1, got {value!r}")
    return value


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return float(value)


def _merge_headers(authorization: Optional[str], extra: Optional[Mapping[str, str]]) -> dict[str, str]:
    """Defaults, then the user's own over them; names compare without regard to case."""
    merged = {
        "User-Agent": user_agent(),
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate",
    }
    if authorization is not None:
        merged["Authorization"] = authorization
    for name, value in (extra or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must map str to str; {name!r} is mapped to a {type(value).__name__}")
        if any(c in name + value for c in "\r\n"):
            raise ValueError(f"header {name!r} holds a line break")
        try:
            name.encode("ascii"), value.encode("latin-1")
        except UnicodeEncodeError as exc:
            raise ValueError(f"header {name!r} holds {exc.object[exc.start]!r}, which HTTP cannot send") from None
        for known in [known for known in merged if known.lower() == name.lower()]:
            del merged[known]
        merged[name] = value
    return merged


def user_agent() -> str:
    from saturate.agent import USER_AGENT, agent_mode

    return f"{USER_AGENT} (agent)" if agent_mode() else USER_AGENT
