"""What an answer means and whether to try again. Pure: statuses, headers, a clock reading and a random number in.

Every refusal belongs to one class, and each class has its own patience:

============ =========================================== ======================================================
class        answers                                     what it costs the row
============ =========================================== ======================================================
ok           any 2xx with a JSON body                    nothing
rate         429                                         time only: waits as asked, or jittered up to `BUDGET_S`
transient    5xx, 408, 409, 425, no answer, broken body  one of `MAX_STRIKES` attempts
fatal        other 4xx, 3xx                              the row at once
============ =========================================== ======================================================

A Retry-After is a floor under the next wait, whatever the class, and is not charged to the budget: it is the
server's own word. Only `MAX_RETRY_AFTER_S` bounds it. Waits between attempts never hold a window slot, which
is the caller's business; so is the breaker, whose pauses are not charged either.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Optional, Union

MAX_STRIKES = 5
"""Attempts that failed for the server's or the wire's sake before a row becomes an error row."""

BACKOFF_FIRST_S = 1.0
BACKOFF_CAP_S = 60.0
"""Full jitter: the n-th wait is uniform in [0, min(cap, first * 2**n)] (1, 2, 4, 8 ... s)."""

BUDGET_S = 300.0
"""Waiting that we choose ourselves (no Retry-After), in all, before a row gives up."""

MAX_RETRY_AFTER_S = 3600.0
"""Waiting that servers ask for with Retry-After, in all, before a row gives up."""

RETRY_AFTER_SPREAD = 0.2
"""A Retry-After is stretched by up to a fifth, so that rows told the same second do not return in it together."""

BODY_EXCERPT_CHARS = 300


class Class(enum.Enum):
    """What kind of outcome an attempt had."""

    OK = "ok"
    RATE = "rate"
    TRANSIENT = "transient"
    FATAL = "fatal"


TRANSIENT_4XX = frozenset({408, 409, 425})
"""Request time-out, conflict (a proxy waking a model up), too early: the same request may pass later."""


def classify(status: int) -> Class:
    """The class of an HTTP status; a 2xx still needs a body that parses."""
    if 200 <= status < 300:
        return Class.OK
    if status == 429:
        return Class.RATE
    if status in TRANSIENT_4XX or not 300 <= status < 500:
        return Class.TRANSIENT
    return Class.FATAL


def retry_after_seconds(value: Optional[str], now_unix: float) -> Optional[float]:
    """Seconds asked for by a Retry-After header: a decimal number or an HTTP date (RFC 9110, 10.2.3).

    A date in the past is 0. None when there is no header or it says nothing usable (then the caller jitters).
    """
    if value is None:
        return None
    text = value.strip()
    if text and text.replace(".", "", 1).isdecimal() and text.isascii():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, when.timestamp() - now_unix)


def excerpt(body: bytes) -> str:
    """The first characters of a body, for an error row."""
    return body[: 4 * BODY_EXCERPT_CHARS].decode("utf-8", "replace")[:BODY_EXCERPT_CHARS]


@dataclass(frozen=True)
class Retry:
    """Wait this many seconds, then try again."""

    wait_s: float


@dataclass(frozen=True)
class GiveUp:
    """The row becomes an error row with this text."""

    error: str


Decision = Union[Retry, GiveUp]


@dataclass
class Ladder:
    """One row's attempts so far, and what to do after each failure."""

    max_retry_after_s: float = MAX_RETRY_AFTER_S
    strikes: int = 0
    refusals: int = 0
    waited_s: float = 0.0
    asked_s: float = 0.0
    attempts: int = field(default=0)

    def after(
        self,
        kind: Class,
        error: str,
        retry_after_s: Optional[float],
        uniform: float,
        server_in_doubt: bool = False,
    ) -> Decision:
        """The decision after an attempt that failed with `error`. `uniform` is a random number in [0, 1).

        server_in_doubt: nothing has succeeded since this row's first failure, so that its failures may be the
        server's and not the row's. Then a row is not given up for its strikes: either something succeeds, or the
        breaker opens and finds out.
        """
        self.attempts += 1
        if kind is Class.FATAL:
            return GiveUp(error)
        if kind is Class.TRANSIENT:
            self.strikes += 1
            if self.strikes >= MAX_STRIKES and not server_in_doubt:
                return GiveUp(error)
        if retry_after_s is not None and math.isfinite(retry_after_s):
            if self.asked_s + retry_after_s > self.max_retry_after_s:
                return GiveUp(
                    f"{error} (the server asks to wait {retry_after_s:g} s more; "
                    f"a row waits {self.max_retry_after_s:g} s in all)"
                )
            self.asked_s += retry_after_s
            return Retry(retry_after_s * (1.0 + RETRY_AFTER_SPREAD * uniform))
        if self.waited_s >= BUDGET_S:
            return GiveUp(error)
        ceiling = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0 ** min(self.refusals, 10))
        self.refusals += 1
        wait = min(ceiling * uniform, BUDGET_S - self.waited_s)
        # Charged by its mean, not by the draw, so that a row's patience does not depend on its luck.
        self.waited_s += ceiling / 2
        return Retry(wait)


def status_error(status: int, body: bytes, location: Optional[str] = None, *, retried: bool) -> str:
    """The error text of an answer that was not a success: its status and the start of its body."""
    if 300 <= status < 400:
        where = f" to {location}" if location else ""
        return f"http {status}: endpoint redirects{where}; pass the final address as endpoint"
    after = " after retries" if retried else ""
    return f"http {status}{after}: {excerpt(body)}"
