"""What an answer's headers say of a quota. Pure: headers in, at most one `Quota` for requests and one for tokens out.

Three spellings are read, most precise first:

* `RateLimit: "name";r=..;t=..` with `RateLimit-Policy: "name";q=..;w=..`, and the older `RateLimit-Policy: 600;w=60`
  (the IETF draft draft-ietf-httpapi-ratelimit-headers, from version 5 on);
* `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests` and the same with `-tokens`, whose resets are
  durations such as `120ms`, `1s` or `6m0s` (OpenAI and those that copy it);
* `ratelimit-limit`, `ratelimit-remaining`, `ratelimit-reset` in seconds (the same draft, to version 7).

Invariant: a value that is no number in a sane range (negative, NaN, huge, garbage, a text of a kilobyte) reads as
absent, so that no header can stop a run or hurry it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

MAX_COUNT = 1e12
MAX_PACED_WINDOW_S = 600.0
"""A quota that renews more rarely (an hour's, a day's) is not spread over its time: what is left of it may be used."""

MAX_SECONDS = 32 * 86400.0
"""A quota lasts a month at most; a reset beyond it is a date, or nonsense."""

_MAX_TEXT = 256
_DURATION = re.compile(
    r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m(?!s))?"
    r"(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)ms)?"
)
_DURATION_UNITS_S = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,12})?")


@dataclass(frozen=True)
class Quota:
    """`limit` in `window_s` seconds (None: not said), of which `remaining` are left until `reset_s` from now."""

    limit: float
    remaining: Optional[float] = None
    reset_s: Optional[float] = None
    window_s: Optional[float] = None


def read_quotas(headers: Mapping[str, str]) -> dict[str, Quota]:
    """The quotas in `headers` (a mapping that ignores case), by unit: "requests", "tokens". Empty when none is said."""
    found = {}
    for unit in ("requests", "tokens"):
        limit = _number(headers.get(f"x-ratelimit-limit-{unit}"))
        if limit:
            remaining = _number(headers.get(f"x-ratelimit-remaining-{unit}"))
            found[unit] = _quota(limit, remaining, _seconds(headers.get(f"x-ratelimit-reset-{unit}")))
    published = _by_policy(headers) or _by_limit(headers)
    if published is not None and "requests" not in found:
        found["requests"] = published
    return found


def _quota(
    limit: float, remaining: Optional[float], reset_s: Optional[float], window_s: Optional[float] = None
) -> Quota:
    return Quota(limit, None if remaining is None or remaining > limit else remaining, reset_s, window_s)


def _by_policy(headers: Mapping[str, str]) -> Optional[Quota]:
    """The tightest of the policies that can be paced, else of the others; its state when the answer tells it."""
    state = {name: parameters for name, parameters in _items(headers.get("ratelimit"))}
    found: list[tuple[bool, float, Quota]] = []
    for name, parameters in _items(headers.get("ratelimit-policy")):
        limit = _number(parameters.get("q")) or _number(name)
        window_s = _seconds(parameters.get("w"))
        if not limit or not window_s or parameters.get("qu", "requests") != "requests":
            continue
        now = state.get(name, {})
        quota = _quota(limit, _number(now.get("r")), _seconds(now.get("t")), window_s)
        found.append((window_s > MAX_PACED_WINDOW_S, limit / window_s, quota))
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def _by_limit(headers: Mapping[str, str]) -> Optional[Quota]:
    """`ratelimit-limit: 600` or `600, 600;w=60`."""
    listed = list(_items(headers.get("ratelimit-limit")))
    limit = _number(listed[0][0]) if listed else None
    if not limit:
        return None
    windows = [_seconds(parameters.get("w")) for name, parameters in listed if _number(name) == limit]
    window_s = next((window for window in windows if window), None)
    remaining, reset_s = _number(headers.get("ratelimit-remaining")), _seconds(headers.get("ratelimit-reset"))
    return _quota(limit, remaining, reset_s, window_s)


def _items(text: Optional[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """A structured list (RFC 9651), leniently: `"a";q=1;w=2, 600;w=60` as (name, parameters)."""
    for item in (text or "")[: 4 * _MAX_TEXT].split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        if name:
            pairs = (parameter.partition("=") for parameter in parameters)
            yield name.strip('"'), {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}


def _number(text: Optional[str]) -> Optional[float]:
    if text is None or len(text) > _MAX_TEXT or not _NUMBER.fullmatch(text.strip()):
        return None
    value = float(text)
    return value if value <= MAX_COUNT else None


def _seconds(text: Optional[str]) -> Optional[float]:
    """Seconds: a bare number, or a duration such as `6m0s`."""
    if text is None or len(text) > _MAX_TEXT:
        return None
    value = _number(text)
    if value is None:
        match = _DURATION.fullmatch(text.strip())
        if match is None or not any(match.groups()):
            return None
        value = math.fsum(float(part) * unit for part, unit in zip(match.groups(), _DURATION_UNITS_S) if part)
    return value if value <= MAX_SECONDS else None
