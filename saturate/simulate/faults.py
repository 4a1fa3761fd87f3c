"""Which fault hits which request. Pure: time comes in as an argument, chance comes from a seed, the id and the attempt.

A `Fault` is one kind of misbehaviour (a row of KINDS), its parameters, and its limits: whom it hits, and when. It is
written the same way on the command line, in Python and in JSON::

    error:rate=0.1,status=503          one request in ten
    hang:attempts=1                    the first attempt of every id
    outage:start=5,end=35,how=refuse   nobody listens from second 5 to second 35

`Faults` is a list of them with a seed. `Judge` applies it to a run of requests and holds what has to be counted:
requests, attempts by id, quota buckets. Seconds are counted from the moment the faults came into force.

Invariant: the verdict on an attempt depends on the seed, the id and the number of the attempt alone (and on the limits
that are spelled out), never on the order in which threads get here. So a run can be repeated, and a retry can succeed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Optional, Union

from saturate.simulate.responses import SHAPES


@dataclass(frozen=True)
class Kind:
    """What a kind of fault does, when it strikes, and the parameters it takes with their defaults."""

    stage: str  # "whole": the server; "instead": no work is done; "after": the work was done; "limit": admission
    does: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)


KINDS: Mapping[str, Kind] = {
    # the whole server
    "outage": Kind(
        "whole", "down from start to end: how=refuse (nobody listens) or answer", {"how": "answer", "status": 503}
    ),
    "cold_start": Kind("whole", "an outage for the first `seconds`", {"seconds": 10.0, "how": "answer", "status": 503}),
    "keep_alive": Kind(
        "whole",
        "closes a connection idle for `seconds`, or after `requests` on it (silent=1: without announcing it)",
        {"seconds": 0.0, "requests": 0, "silent": False},
    ),
    "slow": Kind("whole", "all work takes `factor` times as long", {"factor": 2.0}),
    # instead of an answer
    "error": Kind(
        "instead",
        "answers `status`; late=1: only after the work was done",
        {"status": 500, "body": "", "retry_after": "", "late": False},
    ),
    "redirect": Kind("instead", "a 3xx to `location`", {"status": 307, "location": "/elsewhere"}),
    "hang": Kind("instead", "reads the request and never answers"),
    "drop": Kind(
        "instead",
        "closes the connection before any byte (reset=1: with a RST; late=1: after the work was done)",
        {"reset": False, "late": False},
    ),
    # the answer, spoilt
    "delay": Kind("after", "holds the answer back for `seconds`", {"seconds": 1.0}),
    "status": Kind("after", "the answer, under another `status`", {"status": 201}),
    "malformed": Kind("after", "a 200 whose body is spoilt, in one of many shapes", {"shape": "html"}),
    "gzip": Kind("after", "the answer, compressed"),
    "chunked": Kind("after", "the answer, in chunks"),
    "drip": Kind("after", "the body at `bytes_per_s`", {"bytes_per_s": 100.0}),
    "hang_after_headers": Kind("after", "headers, then silence"),
    "drop_mid_body": Kind("after", "half the body, then a closed connection", {"reset": False}),
    # admission
    "cap": Kind(
        "limit",
        "a 429 when `requests` are running or queued",
        {"requests": 64, "status": 429, "retry_after": ""},
    ),
    "quota": Kind(
        "limit",
        "a 429 above a quota a minute; burst=share of it at once; headers=x-ratelimit|ratelimit|none",
        {
            "per_minute": 0.0,
            "tokens_per_minute": 0.0,
            "burst": 1.0,
            "status": 429,
            "retry_after": "auto",
            "headers": "x-ratelimit",
        },
    ),
    "queue_timeout": Kind("limit", "`status` for a request queued for `seconds`", {"seconds": 30.0, "status": 504}),
}

_TIMES = ("start", "end")
_AIMS = ("rate", "first", "attempts", "contains", "route")  # for the kinds that strike one request
_CHOICES = {"how": ("refuse", "answer"), "shape": SHAPES, "headers": ("x-ratelimit", "ratelimit", "none")}


@dataclass(frozen=True)
class Fault:
    """One fault. A parameter left out (-1, "") takes the kind's default; one that the kind does not have is an error.

    Limits, which all have to hold: `start` and `end` (seconds), and for a fault that strikes single requests `rate`
    (the share of attempts), `first` (the first N requests since the faults came into force), `attempts` (the first N
    attempts of each id), `contains` (a text in the body as it was sent), `route` (the end of the path).

    `retry_after` is the header's value, or ``date:N`` (an HTTP date N seconds ahead), or for a quota ``auto`` (whole
    seconds until there is room), ``auto-fraction``, ``auto-date`` or ``none``.
    """

    kind: str
    rate: float = 1.0
    first: Optional[int] = None
    attempts: Optional[int] = None
    start: float = 0.0
    end: float = math.inf
    contains: str = ""
    route: str = ""
    status: int = -1
    body: str = ""
    retry_after: str = ""
    location: str = ""
    how: str = ""
    shape: str = ""
    headers: str = ""
    seconds: float = -1
    requests: int = -1
    per_minute: float = -1
    tokens_per_minute: float = -1
    burst: float = -1
    bytes_per_s: float = -1
    factor: float = -1
    late: bool = False
    reset: bool = False
    silent: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault {self.kind!r}: pass one of {', '.join(KINDS)}")
        defaults = KINDS[self.kind].defaults
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name == "kind" or name in _limits(self.kind):
                continue
            if name not in defaults:
                if value != field.default:
                    raise ValueError(f"fault {self.kind} has no parameter {name}; it takes {_takes(self.kind)}")
            elif value == field.default:
                object.__setattr__(self, name, defaults[name])
            elif name in _CHOICES and value not in _CHOICES[name]:
                raise ValueError(f"fault {self.kind}: {name}={value!r}; pass one of {', '.join(_CHOICES[name])}")
            elif isinstance(value, (int, float)) and value < 0:
                raise ValueError(f"fault {self.kind}: {name}={value}; pass no negative number")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"fault {self.kind}: rate={self.rate}; pass a share between 0 and 1")
        if self.retry_after.startswith("date:"):
            _typed("retry_after", "float", self.retry_after[len("date:") :])
        if self.kind == "quota" and not (self.per_minute or self.tokens_per_minute):
            raise ValueError("fault quota: pass per_minute=N or tokens_per_minute=N")
        if self.kind == "drip" and not self.bytes_per_s:
            raise ValueError("fault drip: bytes_per_s=0 is a hang_after_headers")

    @classmethod
    def read(cls, given: Union[Fault, str, Mapping[str, Any]]) -> Fault:
        """A fault from ``kind:name=value,...`` or from a mapping with the same names. ValueError says what is wrong."""
        if isinstance(given, Fault):
            return given
        if isinstance(given, str):
            kind, _, rest = given.partition(":")
            values: dict[str, Any] = {"kind": kind.strip()}
            for pair in filter(None, rest.split(",")):
                name, equals, value = pair.partition("=")
                if not equals:
                    raise ValueError(f"fault {given!r}: {pair!r} is not name=value")
                values[name.strip()] = value.strip()
        else:
            values = dict(given)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        kind = str(values.get("kind"))
        unknown = [name for name in values if name not in fields]
        if unknown and kind in KINDS:
            raise ValueError(f"fault {kind} has no parameter {unknown[0]}; it takes {_takes(kind)}")
        for name in unknown:  # the kind is unknown, too, and that is what to say
            del values[name]
        return cls(**{name: _typed(name, str(fields[name].type), value) for name, value in values.items()})

    def covers(self, seconds: float) -> bool:
        """Whether the fault's time is now."""
        if self.kind == "cold_start":
            return self.start <= seconds < self.start + self.seconds
        return self.start <= seconds < self.end


def _limits(kind: str) -> tuple[str, ...]:
    """The limits that a kind takes: what strikes everybody cannot be aimed."""
    return _TIMES if KINDS[kind].stage in ("whole", "limit") else _TIMES + _AIMS


def _takes(kind: str) -> str:
    return ", ".join([*KINDS[kind].defaults, *_limits(kind)])


def _typed(name: str, kind: str, value: Any) -> Any:
    """`value` as what the field's annotation says, from text or from JSON."""
    if value is None:
        return None
    try:
        if kind == "bool":
            return value if isinstance(value, bool) else bool(int(value))
        if "int" in kind:
            return int(value)
        if kind == "float":
            return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"fault parameter {name}={value!r} is not a number")
    return str(value)


class Faults:
    """A list of faults and the seed of their chance. `Faults()` is a server that behaves."""

    def __init__(self, *faults: Union[Fault, str, Mapping[str, Any]], seed: int = 0) -> None:
        self.all = tuple(Fault.read(fault) for fault in faults)
        self.seed = seed

    def __repr__(self) -> str:
        return f"Faults({', '.join(fault.kind for fault in self.all)}{', ' if self.all else ''}seed={self.seed})"

    def stage(self, stage: str) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.all if KINDS[fault.kind].stage == stage)


@dataclass(frozen=True)
class Verdict:
    """What hits one attempt: at most one fault instead of the answer, and any number that spoil the answer."""

    instead: Optional[Fault] = None
    after: tuple[Fault, ...] = ()


CLEAN = Verdict()


@dataclass(frozen=True)
class Refusal:
    """An answer that admission gives. `headers` are complete but for a date, see `retry_after`."""

    status: int
    message: str
    retry_after: Optional[str] = None


class _Bucket:
    """A token bucket: `rate` a second flow in, `size` fit."""

    def __init__(self, per_minute: float, burst: float, now: float) -> None:
        self.limit = per_minute
        self.rate = per_minute / 60.0
        self.size = max(1.0, per_minute * burst)
        self.level = self.size
        self.at = now

    def settle(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.at) * self.rate)
        self.at = now

    def lacks(self, amount: float) -> float:
        """Seconds until `amount` is there (a request larger than the bucket waits for a full one)."""
        return max(0.0, (min(amount, self.size) - self.level) / self.rate)


class Judge:
    """`faults` in force since `since`. Not thread-safe: `verdict` and `charge` need the caller's lock."""

    def __init__(self, faults: Faults, since: float) -> None:
        self.faults = faults
        self._since = since
        self._outages = tuple(fault for fault in faults.all if fault.kind in ("outage", "cold_start"))
        self._slow = tuple(fault for fault in faults.all if fault.kind == "slow")
        self._instead = faults.stage("instead")
        self._after = faults.stage("after")
        self._quotas = tuple(
            (fault, _Bucket(fault.per_minute, fault.burst, since), _Bucket(fault.tokens_per_minute, fault.burst, since))
            for fault in faults.all
            if fault.kind == "quota"
        )
        self._seen = 0
        self._attempts: dict[str, int] = {}
        self._caps = tuple(fault for fault in faults.all if fault.kind == "cap")
        self._queue_timeouts = tuple(fault for fault in faults.all if fault.kind == "queue_timeout")
        self._keep_alives = tuple(fault for fault in faults.all if fault.kind == "keep_alive")
        self.judges = bool(self._instead or self._after)  # whether `verdict` can say anything but CLEAN
        self.charges = bool(self._quotas)

    def _first(self, faults: tuple[Fault, ...], now: float) -> Optional[Fault]:
        return next((fault for fault in faults if fault.covers(now - self._since)), None)

    def outage(self, now: float) -> Optional[Fault]:
        """The outage that is on."""
        return self._first(self._outages, now) if self._outages else None

    def next_change(self, now: float) -> float:
        """Seconds until an outage or a slowdown begins or ends; infinity when none will."""
        passed = now - self._since
        edges = [fault.start for fault in (*self._outages, *self._slow)]
        edges += [
            fault.start + fault.seconds if fault.kind == "cold_start" else fault.end
            for fault in (*self._outages, *self._slow)
        ]
        return min((edge - passed for edge in edges if edge > passed), default=math.inf)

    def slowdown(self, now: float) -> float:
        """How many times as long work takes now."""
        return math.prod(fault.factor for fault in self._slow if fault.covers(now - self._since))

    def cap(self, now: float) -> Optional[Fault]:
        """The cap on requests in the house."""
        return self._first(self._caps, now) if self._caps else None

    def queue_timeout(self, now: float) -> Optional[Fault]:
        """The limit on the time in the queue."""
        return self._first(self._queue_timeouts, now) if self._queue_timeouts else None

    def keep_alive(self, now: float) -> Optional[Fault]:
        """The limit on a connection's life."""
        return self._first(self._keep_alives, now) if self._keep_alives else None

    def verdict(self, now: float, name: str, route: str, body: bytes) -> Verdict:
        """What hits this attempt of the request `name`. Counts it."""
        self._seen += 1
        attempt = self._attempts[name] = self._attempts.get(name, 0) + 1
        passed = now - self._since

        def hits(fault: Fault) -> bool:
            return (
                fault.covers(passed)
                and (fault.first is None or self._seen <= fault.first)
                and (fault.attempts is None or attempt <= fault.attempts)
                and route.endswith(fault.route)
                and (not fault.contains or fault.contains.encode() in body)
                and (fault.rate >= 1.0 or self._chance(fault, name, attempt) < fault.rate)
            )

        instead = next((fault for fault in self._instead if hits(fault)), None)
        after = tuple(fault for fault in self._after if hits(fault))
        return Verdict(instead, after) if instead or after else CLEAN

    def _chance(self, fault: Fault, name: str, attempt: int) -> float:
        """A number in [0, 1) of its own for every fault, id and attempt."""
        text = f"{self.faults.seed}/{self.faults.all.index(fault)}/{attempt}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") / (1 << 56)

    def charge(self, now: float, tokens: int) -> tuple[Optional[Refusal], list[tuple[str, str]]]:
        """Take one request of `tokens` from every quota, or from none and say when to come back. Also the headers."""
        refusal = None
        for fault, by_requests, by_tokens in self._quotas:
            wait = 0.0
            for bucket, amount in ((by_requests, 1.0), (by_tokens, float(tokens))):
                if bucket.limit:
                    bucket.settle(now)
                    wait = max(wait, bucket.lacks(amount))
            if wait > 0 and refusal is None:
                refusal = Refusal(fault.status, "Rate limit reached", _auto(fault.retry_after, wait))
        headers: list[tuple[str, str]] = []
        for fault, by_requests, by_tokens in self._quotas:
            for bucket, amount, unit in ((by_requests, 1.0, "requests"), (by_tokens, float(tokens), "tokens")):
                if bucket.limit:
                    if refusal is None:
                        bucket.level -= min(amount, bucket.size)
                    headers += _quota_headers(fault.headers, unit, bucket)
        return refusal, headers


def _quota_headers(style: str, unit: str, bucket: _Bucket) -> list[tuple[str, str]]:
    """`x-ratelimit` as OpenAI sends it (a reset like 1.5s), `ratelimit` as the IETF draft has it (whole seconds)."""
    until_full = (bucket.size - bucket.level) / bucket.rate
    if style == "x-ratelimit":
        return [
            (f"x-ratelimit-limit-{unit}", f"{bucket.limit:.0f}"),
            (f"x-ratelimit-remaining-{unit}", f"{math.floor(bucket.level)}"),
            (f"x-ratelimit-reset-{unit}", f"{until_full:.3f}s"),
        ]
    if style == "ratelimit" and unit == "requests":
        return [
            ("ratelimit-limit", f"{bucket.limit:.0f}"),
            ("ratelimit-remaining", f"{math.floor(bucket.level)}"),
            ("ratelimit-reset", f"{math.ceil(until_full)}"),
        ]
    return []


def _auto(text: str, wait: float) -> Optional[str]:
    """A quota's `retry_after` with the wait filled in."""
    if text == "auto":
        return str(math.ceil(wait))
    if text == "auto-fraction":
        return f"{math.ceil(wait * 1000) / 1000:.3f}"
    if text == "auto-date":
        return f"date:{wait}"
    return None if text == "none" else text


def retry_after(text: Optional[str], wall: float) -> list[tuple[str, str]]:
    """The Retry-After header for a fault's `retry_after`; none when there is no text. `wall` is the Unix time.

    An HTTP date has whole seconds, so it is rounded up: it never asks for less than was meant.
    """
    if not text:
        return []
    if text.startswith("date:"):
        return [("Retry-After", formatdate(math.ceil(wall + float(text[5:])), usegmt=True))]
    return [("Retry-After", text)]
