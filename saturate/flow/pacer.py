"""The second valve: how fast requests may leave under a quota. Pure: readings of a clock in, seconds to wait out.

The window bounds how many requests are in flight, and is found by what the server delivers. The pacer bounds how many
leave in a minute, and is told: by the user (`Pace`), by the headers of answers, by refusals with a Retry-After. It
does nothing until one of them speaks. Three rules live here, a class each:

* `_Flow`, a schedule: every request reserves a place in the sequence, and the place becomes due when as much has
  flowed in. Places do not move when the rate changes or all pause, only their time does, so that nobody waits by an
  old rate and nobody leaves in a herd. This is the generic cell rate algorithm (ITU-T I.371) with its clock in units.
* `_Published`, a quota from headers: a limit, and whether it is a minute's, a shorter time's or a day's.
* `_Refusals`, a quota from refusals alone. A refused request found the bucket empty; between two such moments what
  was accepted is what had flowed in, so accepted / elapsed is the rate (conservation).

Invariants: a wait is never longer than a pause of `MAX_PAUSE_S` and the queue at the rate in force; a clock that jumps,
either way, neither freezes the run nor lets it leave at once; the caller holds the lock.
"""

from __future__ import annotations

import math
import re
from bisect import insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from saturate.http.quota import MAX_PACED_WINDOW_S, Quota, read_quotas

SHARE = 0.99
"""Of the quota: what is left covers jitter on the way, where a minute there is not a minute here."""

BURST_S = 0.4
"""Seconds of flow that may leave at once after idleness. With SHARE it stays under 61 s worth in any minute, so that
a window that slides refuses nothing either."""

LEAP_S = 3.0
"""A clock that jumps ahead (a suspended machine) brings no more than this many seconds of flow."""

RECHECK_S = 2.0
"""A long wait is asked for again this often: the rate may have changed meanwhile."""

MAX_PAUSE_S = 60.0
"""How long one Retry-After stops everybody. The refused row itself waits the whole of it (see retry.py)."""

LISTEN_ANSWERS = 32
"""An API that sends quota headers sends them from the first answer on; after this many without, nobody looks again."""

SPAN_S = 120.0
"""Refusals of the last two minutes are evidence, from the last one before them on."""

MAX_BELIEVED_S = 3600.0
SLOWEST = 1 / 60.0
"""Requests a second: no refusals, whatever they ask for, bring the pace below one a minute."""

LONG_AGO_S = 5.0
"""A Retry-After above it names the end of a window; below, the next trickle into a bucket."""

TOLERATED = 0.005
"""Refusals in this share of requests, half of what a run may show, are no reason to slow down."""

LONE_MOST = 3
"""So many refusals a minute may each be their own row's matter; more are a quota, whatever passes between them."""

MINUTE_S = 60.0


@dataclass(frozen=True)
class Pace:
    """A published quota: how many requests and how many tokens (prompt and completion) a minute may take.

    Either may be None (not limited). Raises ValueError for what is no finite number above 0, and for no limit at all.
    """

    requests_per_minute: Optional[float] = None
    tokens_per_minute: Optional[float] = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} must be a number, got {value!r}")
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            raise ValueError("a Pace needs a limit: Pace(requests_per_minute=600) or Pace(tokens_per_minute=90_000)")


def check_pace(pace: object) -> Optional[Pace]:
    """`pace` if it is a Pace or None; TypeError with a sentence otherwise."""
    if pace is not None and not isinstance(pace, Pace):
        raise TypeError(f"pace must be a Pace such as Pace(requests_per_minute=600), got {pace!r}")
    return pace


class Turn(NamedTuple):
    """A request's place: in the sequence of requests, in the sequence of tokens, and the tokens it reserved."""

    requests: float
    tokens: float
    cost: float
    estimate: float


_MAX_TOKENS = re.compile(rb'"max_(?:completion_|output_|new_)?tokens"\s*:\s*([0-9]{1,9})')
BYTES_PER_TOKEN = 4


def likely_tokens(body: bytes) -> float:
    """Tokens that a request with this body may cost at most, before anything is known of its kind."""
    allowed = _MAX_TOKENS.search(body)
    return len(body) / BYTES_PER_TOKEN + (float(allowed.group(1)) if allowed else 0.0)


class _Flow:
    """A schedule in units of requests or tokens: `credit` has flowed in, and places up to `tail` are given."""

    def __init__(self) -> None:
        self.rate: Optional[float] = None
        self._credit = 0.0
        self._tail = 0.0
        self._at = 0.0
        self._cost = 1.0

    def settle(self, now: float, resume_at: float) -> None:
        """Lets flow in what the time since the last call brought; a pause until `resume_at` brings nothing."""
        if self.rate is not None:
            passed = min(now - max(self._at, resume_at), max(LEAP_S, 2 * self._cost / self.rate))
            self._credit += max(0.0, passed) * self.rate
        self._at = now

    def change(self, rate: Optional[float]) -> None:
        """Another rate from now on, None for no limit. Call `settle` first."""
        if rate is None or self.rate is None:
            self._tail = self._credit
        self.rate = rate

    def take(self, cost: float) -> float:
        """Reserves the next place."""
        if self.rate is None:
            return self._credit
        place = max(self._tail, self._credit - BURST_S * self.rate)
        self._tail = place + cost
        self._cost = cost
        return place

    def correct(self, amount: float) -> None:
        """What was reserved cost `amount` more than that (or less)."""
        if self.rate is not None:
            self._credit -= amount

    def lacks_s(self, place: float) -> float:
        """Seconds of flow until `place` is due."""
        return max(0.0, place - self._credit) / self.rate if self.rate is not None else 0.0


PROBE_STEP = 0.02
PROBE_MOST = 0.5
PROBE_EVERY = 100
"""Requests between probes, at least: each may end in a refusal, and a refusal in a hundred is the most to accept."""

QUIET_MIN_S = 10.0
"""An estimate from s seconds of evidence is tested after s quiet seconds, between these and a minute."""

ENOUGH = 5
FEW_TO_DIFFER = 20
SHORT_SPAN_S = 10.0
"""Two estimates of one quota differ when the shorter has this much behind it."""

ROOM_S = 61.0
ROOM_AGAIN_S = 20.0
ROOM_STEP = 1.5
ROOM_CLOSED_S = 600.0
RECENT_S = 10.0


class _Published:
    """One unit's quota as headers tell it.

    Headers rarely say how long a quota's time is, and a day's must not pass for a minute's. A reset that is longer
    than a minute away (until the bucket is full, or until the window ends) cannot belong to a minute. A quota of a
    shorter time shows by what remains: if for a minute of pacing never less than half was left, the pace was too
    slow, and rises by half as long as half is left.
    """

    def __init__(self) -> None:
        self._limit = 0.0
        self._window_s: Optional[float] = None
        self._most_left = 0.0
        self._factor = 1.0
        self._room_since = 0.0
        self._room_s = ROOM_S

    @property
    def rate(self) -> Optional[float]:
        """Units a second, None when the quota's time is too long to be paced or there is none."""
        window_s = self._window_s
        if not self._limit or window_s is None or window_s > MAX_PACED_WINDOW_S:
            return None
        return self._limit / window_s * self._factor

    @property
    def looking_for_room(self) -> bool:
        """Whether the rate is above what limit and window say."""
        return self._factor > 1.0

    def read(self, now: float, quota: Quota, waited_at: float) -> None:
        """`waited_at`: when a request last had to wait for its turn."""
        if abs(quota.limit - self._limit) > 0.01 * self._limit:
            self._limit, self._window_s, self._most_left = quota.limit, None, 0.0
            self._factor, self._room_since, self._room_s = 1.0, now, ROOM_S
        if quota.window_s is not None:
            self._window_s = quota.window_s
            return
        if self._window_s is None:
            self._window_s = MINUTE_S
        if quota.reset_s is not None and quota.reset_s > MINUTE_S + 1.0:
            self._window_s = max(self._window_s, quota.reset_s, MAX_PACED_WINDOW_S + 1.0)
        if quota.remaining is not None:
            self._look_for_room(now, quota.remaining, waited_at)

    def _look_for_room(self, now: float, remaining: float, waited_at: float) -> None:
        self._most_left = max(self._most_left, remaining)
        left = remaining / self._most_left if self._most_left else 0.0
        if left < 0.5 or waited_at < now - RECENT_S:
            self._room_since = max(self._room_since, now)
            if left < 0.25:
                self._factor = max(1.0, self._factor / ROOM_STEP)
        elif now - self._room_since >= self._room_s:
            self._factor *= ROOM_STEP
            self._room_since, self._room_s = now, ROOM_AGAIN_S

    def refused(self, now: float) -> None:
        """The quota is real: no looking for room for a while."""
        self._factor, self._room_since, self._room_s = 1.0, now + ROOM_CLOSED_S, ROOM_S


class _Mark(NamedTuple):
    """A refusal: the number of the request among all sent, when it left, and the wait it was told."""

    serial: int
    sent_at: float
    retry_after_s: float


class _Refusals:
    """A quota from refusals alone: `pace` is the rate to keep (None: never refused), in requests a second.

    Between two refusals the requests sent and not refused are what was accepted. A bucket was empty at both; a window
    that is counted by the minute was used up at both, and its end is where the Retry-After of each points, so the time
    between those ends is what counts. A few accepted say little; the estimate errs upwards by one request, since a
    pace too high is refused and so found out, a pace too low never is.

    A refusal of a request that was sent before the last correction, or before the pause that came with it was over,
    says nothing new.
    """

    def __init__(self) -> None:
        self.pace: Optional[float] = None
        self.searching = False
        self._marks: list[_Mark] = []
        self._refused = 0
        self.certain = False
        self._guessing = False
        self._heard_until = -math.inf
        self._corrected_serial = 0
        self._since_correction = 0
        self._last_at = -math.inf
        self._quiet_since = 0.0
        self._quiet_s = QUIET_MIN_S
        self._step = PROBE_STEP
        self._sure: Optional[float] = None

    def refused(self, now: float, resume_at: float, mark: _Mark, started_at: float, base: Optional[float]) -> bool:
        """Whether this refusal says anything new.

        `resume_at`: when the pause ends that it brings. `started_at`: when the run began. `base`: the rate that
        somebody told, None when nobody did.
        """
        self._refused += 1
        self._note(mark)
        self._since_correction += mark.serial > self._corrected_serial
        if mark.sent_at <= self._heard_until and now >= self._heard_until - MAX_PAUSE_S:
            if self._guessing:
                self._guess(mark, started_at)
            return False
        last_at, self._last_at = self._last_at, mark.sent_at
        self._heard_until = max(now, resume_at)
        self._quiet_since = now
        self._step = PROBE_STEP
        if self._guessing:
            # In the storm before the first pause nobody knows who came first: the last of it is where to count from.
            del self._marks[:-2]
        estimate, span_s = self._estimate()
        current = self.pace if self.pace is not None else base
        self._guessing = current is None
        if self._guessing:
            self._guess(mark, started_at)
        elif estimate is not None:
            few = self._since_correction <= TOLERATED * (mark.serial - self._corrected_serial)
            cheap = mark.retry_after_s <= 2 * TOLERATED * (mark.sent_at - last_at)
            if self.searching or not (few and cheap):
                self._settle_on(mark, estimate, span_s, base)
        elif base is None:
            self._step_back(mark)
        return True

    def _guess(self, mark: _Mark, started_at: float) -> None:
        """Nothing but what went through so far: too much for a bucket, whose burst is in it; right for a window.

        Requests that were on the way with the first refused one are refused after it, and each makes the guess better.
        """
        accepted = max(1, self._marks[-1].serial - self._refused)
        elapsed = max(1.0, mark.sent_at - started_at)
        if mark.retry_after_s > LONG_AGO_S and accepted >= ENOUGH:
            pace, self._quiet_s = SHARE * accepted / (elapsed + min(mark.retry_after_s, MAX_PAUSE_S)), MINUTE_S
        else:
            pace, self.searching = max(1.0, accepted / elapsed / 4), True
        self._correct(mark, pace)

    def _settle_on(self, mark: _Mark, estimate: float, span_s: float, base: Optional[float]) -> None:
        pace = SHARE * estimate
        if base is not None and pace >= base:
            return
        if self._sure is not None and self.pace is not None and self.pace > self._sure:
            # A probe went too far; a minute at the pace before it was quiet, whatever a long average says.
            pace = max(pace, self._sure)
        self.searching = False
        self.certain = self.certain or span_s >= QUIET_MIN_S
        self._sure = pace
        self._quiet_s = min(MINUTE_S, max(QUIET_MIN_S, span_s))
        if self.certain:
            self._quiet_s = max(self._quiet_s, PROBE_EVERY / pace)
        if mark.retry_after_s > 0.1 * span_s:
            self._quiet_s += 4 * min(mark.retry_after_s, MAX_PAUSE_S)
        self._correct(mark, pace)

    def _step_back(self, mark: _Mark) -> None:
        """Refused again, and next to nothing accepted since: half the pace, but as often as the server itself says."""
        assert self.pace is not None
        floor = min(10.0, max(1 / 30.0, 2.0 / max(mark.retry_after_s, 0.2)))
        if self.pace > floor:
            self.searching = True
            self._correct(mark, max(floor, self.pace / 2))

    def _correct(self, mark: _Mark, pace: float) -> None:
        self.pace = max(SLOWEST, pace)
        self._corrected_serial, self._since_correction = mark.serial, 0

    def accepted(self, now: float, sent_at: float) -> None:
        """While searching, each request accepted at the new pace raises it: e-fold in two seconds."""
        if self.searching and self.pace is not None and sent_at > self._heard_until:
            self.pace += min(0.5, 0.5 * self.pace)

    def probe(self, now: float, waited_at: float) -> None:
        """After a quiet time in which the pace was what held requests back: a little more, and more again."""
        if self.pace is None or self.searching or now - self._quiet_since < self._quiet_s:
            return
        if waited_at >= now - RECENT_S:
            self._sure = self.pace
            self.pace *= 1.0 + self._step
            self._step = min(PROBE_MOST, 2 * self._step)
        self._quiet_since = now

    def _note(self, mark: _Mark) -> None:
        insort(self._marks, mark)
        # One older than the span is kept, as the start of it.
        horizon = self._marks[-1].sent_at - SPAN_S
        old = 0
        while old + 2 < len(self._marks) and self._marks[old + 1].sent_at < horizon:
            old += 1
        del self._marks[:old]

    def _estimate(self) -> tuple[Optional[float], float]:
        """(requests a second, seconds of evidence); None when too few were accepted between refusals."""
        marks = self._marks
        long = self._between(0)
        if long is None:
            return None, 0.0
        for base in range(len(marks) - 2, 0, -1):
            if marks[-1].sent_at - marks[base].sent_at < SHORT_SPAN_S:
                continue
            short = self._between(base)
            if short is None or short[0] < FEW_TO_DIFFER:
                continue
            if not 0.7 < (short[0] / short[1]) / (long[0] / long[1]) < 1.4:
                # The quota is another now: what was before is no evidence any more.
                del marks[:base]
                long = short
            break
        return (long[0] + 1) / long[1], long[1]

    def _between(self, base: int) -> Optional[tuple[int, float]]:
        """(requests accepted, seconds) between the mark at `base` and the newest."""
        first, last = self._marks[base], self._marks[-1]
        span_s = last.sent_at - first.sent_at
        if max(first.retry_after_s, last.retry_after_s) > LONG_AGO_S:
            span_s += last.retry_after_s - first.retry_after_s
        accepted = last.serial - first.serial - (len(self._marks) - 1 - base)
        return (accepted, span_s) if accepted >= ENOUGH and span_s >= 1.0 else None


class Pacer:
    """How long each request has to wait under the quotas known so far. `pace` is the user's, None for none.

    `pacing` is whether `reserve` has anything to say, and `listening` whether `accepted` has anything to learn: both
    plain attributes, for a caller who wants to spare an idle pacer's lock. `counts_tokens` is whether `cost_tokens`
    matters. `news` are sentences for the log, for the caller to take.
    """

    def __init__(self, pace: Optional[Pace] = None):
        self._told: dict[str, float] = {}
        if pace is not None and pace.requests_per_minute is not None:
            self._told["requests"] = pace.requests_per_minute / MINUTE_S
        if pace is not None and pace.tokens_per_minute is not None:
            self._told["tokens"] = pace.tokens_per_minute / MINUTE_S
        self._flows = {"requests": _Flow(), "tokens": _Flow()}
        self._published: dict[str, _Published] = {}
        self._refusals = _Refusals()
        self._lone: deque[float] = deque(maxlen=LONE_MOST)
        self._doubt_since: Optional[float] = None
        self._resume_at = -math.inf
        self._started_at: Optional[float] = None
        self._now = -math.inf
        self._waited_at = -math.inf
        self._paced_since = math.inf
        self._silent_answers = 0
        self._usage_mean = self._estimate_mean = 0.0
        self._said_rpm: Optional[float] = None
        self._said_pause_at = -math.inf
        self.news: list[str] = []
        self.pacing = self.listening = self.counts_tokens = False
        self._apply(0.0)

    @property
    def requests_per_minute(self) -> Optional[float]:
        """The pace in force, None when none is."""
        rate = self._flows["requests"].rate
        return None if rate is None else rate * MINUTE_S

    @property
    def tokens_per_minute(self) -> Optional[float]:
        """The pace in force, None when none is."""
        rate = self._flows["tokens"].rate
        return None if rate is None else rate * MINUTE_S

    def start(self, now: float) -> None:
        """The run begins."""
        self._started_at = self._now = now
        for flow in self._flows.values():
            flow.settle(now, now)

    # -- a request on its way out

    def reserve(self, now: float, cost_tokens: float = 0.0) -> Turn:
        """A place for one request that may cost `cost_tokens` (see `likely_tokens`). `wait_s` says when it is due."""
        self._settle(now)
        self._refusals.probe(now, self._waited_at)
        self._apply(now)
        cost = cost_tokens
        if self._estimate_mean > 0:
            cost *= self._usage_mean / self._estimate_mean
        return Turn(self._flows["requests"].take(1.0), self._flows["tokens"].take(cost), cost, cost_tokens)

    def wait_s(self, now: float, turn: Turn) -> float:
        """Seconds to sleep before asking again; 0 when the request may go. At most `RECHECK_S`."""
        self._settle(now)
        pause_s = max(0.0, self._resume_at - now)
        wait_s = pause_s + max(
            self._flows["requests"].lacks_s(turn.requests), self._flows["tokens"].lacks_s(turn.tokens)
        )
        if wait_s <= 1e-9:
            return 0.0
        self._waited_at = now
        if not pause_s:
            self._say_quota()
        return min(wait_s, RECHECK_S)

    # -- what became of it

    def accepted(
        self, now: float, sent_at: float, tokens: float, headers: Mapping[str, str], turn: Optional[Turn] = None
    ) -> None:
        """A request that left at `sent_at` was answered and used `tokens` (0: not known); `turn` is its reservation."""
        self._settle(now)
        if turn is not None and tokens > 0:
            self._flows["tokens"].correct(tokens - turn.cost)
            weight = 0.05 if self._estimate_mean else 1.0
            self._usage_mean += weight * (tokens - self._usage_mean)
            self._estimate_mean += weight * (turn.estimate - self._estimate_mean)
        self._refusals.accepted(now, sent_at)
        if self._doubt_since is not None and sent_at > self._doubt_since:
            self._doubt_since = None
        if not self._read(now, headers):
            self._silent_answers += 1
        self._apply(now)

    def refused(
        self, now: float, sent_at: float, serial: int, retry_after_s: Optional[float], headers: Mapping[str, str]
    ) -> bool:
        """A request got a 429: whether that is a matter of quota. If not (no word of one), nothing changes here.

        serial: the number of the request among all that were sent, refused ones included.
        """
        self._settle(now)
        published = self._read(now, headers)
        asked = retry_after_s is not None and math.isfinite(retry_after_s)
        if not asked and not published:
            return False
        if not published and self._may_be_alone(now):
            return True
        news = sent_at > self._paced_since
        if retry_after_s is not None and asked:
            wait_s = max(0.0, retry_after_s)
            started_at = self._started_at if self._started_at is not None else sent_at
            self._pause(now, wait_s)
            mark = _Mark(serial, sent_at, min(wait_s, MAX_BELIEVED_S))
            news &= self._refusals.refused(now, self._resume_at, mark, started_at, self._base("requests"))
        if news:
            for quota in self._published.values():
                quota.refused(now)
        self._apply(now)
        return True

    def _may_be_alone(self, now: float) -> bool:
        """Whether this refusal may be its row's own matter: then nobody else waits.

        It may while nothing else speaks of a quota, until a second one comes before a request that left after the
        first was accepted.
        """
        if self._base("requests") is not None or self._base("tokens") is not None or self._refusals.pace is not None:
            return False
        often = len(self._lone) == LONE_MOST and now - self._lone[0] < MINUTE_S
        if self._doubt_since is not None or often:
            self._doubt_since = None
            return False
        self._doubt_since = now
        self._lone.append(now)
        self._apply(now)
        return True

    # -- what the quotas come to

    def _settle(self, now: float) -> None:
        if now < self._now:
            # A clock set back would make a pause of a minute last for hours.
            self._resume_at = min(self._resume_at, now + MAX_PAUSE_S)
        self._now = now
        for flow in self._flows.values():
            flow.settle(now, self._resume_at)

    def _read(self, now: float, headers: Mapping[str, str]) -> bool:
        quotas = read_quotas(headers)
        for unit, quota in quotas.items():
            self._published.setdefault(unit, _Published()).read(now, quota, self._waited_at)
        return bool(quotas)

    def _base(self, unit: str) -> Optional[float]:
        """Units a second that somebody told: the user, whose word counts more, or the headers."""
        rate = self._told.get(unit)
        if rate is None and unit in self._published:
            rate = self._published[unit].rate
        return None if rate is None else SHARE * rate

    def _apply(self, now: float) -> None:
        requests, tokens = self._base("requests"), self._base("tokens")
        learned = self._refusals.pace
        if learned is not None and requests is not None and learned >= requests:
            self._refusals.pace = learned = None
        if learned is not None:
            requests = learned
        self._flows["requests"].change(requests)
        self._flows["tokens"].change(tokens)
        self.counts_tokens = tokens is not None
        pacing = requests is not None or tokens is not None
        if pacing != self.pacing:
            self._paced_since = now if pacing else math.inf
        self.pacing = pacing
        self.listening = (
            self.counts_tokens
            or bool(self._published)
            or self._refusals.searching
            or self._doubt_since is not None
            or self._silent_answers < LISTEN_ANSWERS
        )

    def _pause(self, now: float, wait_s: float) -> None:
        until = now + min(wait_s, MAX_PAUSE_S)
        if until <= self._resume_at:
            return
        long = wait_s >= LONG_AGO_S or (wait_s >= 1.0 and now - self._said_pause_at >= MINUTE_S)
        if self._resume_at <= now and long:
            self._said_pause_at = now
            bounded = f" (a try every {MAX_PAUSE_S:.0f} s)" if wait_s > MAX_PAUSE_S else ""
            self.news.append(f"rate limited: waiting {_short(wait_s)} s as asked{bounded}")
        self._resume_at = until

    def _say_quota(self) -> None:
        """Says what the pace is, once it holds somebody back, and again when it has become another."""
        rpm, learned = self.requests_per_minute, self._refusals.pace is not None
        if rpm is None or (learned and not self._refusals.certain):
            return
        if not learned and ("requests" in self._told or self._published["requests"].looking_for_room):
            return
        if self._said_rpm is None or not 0.8 < rpm / self._said_rpm < 1.25:
            self._said_rpm = rpm
            self.news.append(f"quota learned: about {rpm:.4g} requests a minute")


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"
