"""The window: how many requests to keep in flight. Pure: numbers in, a window out.

`Auto` is called once a tick with what that tick saw and answers with the next window. It has no clock, no
lock and no socket; time comes in as `Obs.tick_s`. The same observations give the same windows.

What it looks for is the smallest window that delivers within about 1 % of the best. It judges a window by the
work that came out of it, never by latency: a batching server's latency rises from the second request on, so
latency says nothing about where the best window is. It keeps three rules whatever the numbers say:

* no window is widened through which nothing has come back yet;
* no window is judged by rows of the one before it. A window has *drained* when as many rows have come back as
  the larger of the two held;
* no tick in which the window was not full is evidence.

Four states:

    climb   double at every turnover (as many rows back as the window before held) while a doubling pays. The
            window is widened again before it has drained, so its evidence comes one step late: that costs an
            overshoot, and saves half of the ramp. But a first widening that delivers less than the start did is
            judged drained: the start may be past the knee, where every doubling costs minutes. With the engine's
            own token counters a step takes two ticks.
    rest    hold the best window known, and keep measuring it. When what it delivers moves and stays moved, the
            server has changed, and all that was known goes.
    descend without gauges, when most of a guessed first window queues, or when what is delivered has collapsed: halve,
            and halve again as soon as it has drained to that, while as much comes back. A queue in the server
            delivers the same all the while; rows that are being served do not.
    probe   try another window, drained, for as long as it takes to tell it from the resting one, and stay
            there or go back. Probes go down and up, near and far (a plateau may be false), and ever more
            rarely while they fail.

Three signs end a state at once, without a measurement: refusals and time-outs (the window is halved, and
then put at what the server had accepted), silence (halved), and a queue that the server's gauges show (down to
what is running and a small reserve). A refusal that names its wait is a contract; the pacer keeps it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Optional, Union

NOMINAL_TICK_S = 2.0

# Noise of a ratio of two rates, as a share, for one row each; it falls with the root of the rows.
DELIVERED_NOISE = 0.8  # rows and their tokens: lengths vary by 0.4-1.5 of their mean
COUNTED_NOISE = 0.4  # the engine's counters: only the prompts' lengths are left

BURST_ROWS = 4.0  # a tick, where some ticks have none: rows come back together

# The climb.
PATIENT_TICKS = 4  # with counters: before a step that does not pay ends the climb
DOUBTFUL = 0.95  # below this share of the start's own rate, the first widening is judged drained
FROM_EMPTY = 1.5  # a start fills an empty server before it delivers: so much less than it will
PLAINLY_PAYS = 1.3  # at the ceiling: less than this from the last doubling, and half may do
FELL = 0.88  # below this share of the rung before, the window is past the knee: step back
FELL_SIGMAS = 0.3  # a wider window that a narrower one seems to have beaten is not lightly given up
FELL_TURNS = 32.0  # turnovers for which that is remembered
FAR_PAST = 0.8  # below this, the rung before may be past it too
CAUTIOUS_START = 64  # a start above this is somebody's guess: look down before up

# The way down, without gauges: halved for as long as a half delivers the same.
KEEPS = 0.93  # share of the rate before, while the rows that are too many drain
DRAIN_ROWS = 16  # rows back before a half is judged
GUESSED_LATE = 3.0  # a guessed start: after so many times what the first rows took,
GUESSED_BACK = 0.6  # less than this share of the window has come back: the rest queues
RECENT_TICKS = 128
WIDE = 64  # a narrower one holds no queue worth a hasty look, and too few rows to tell
GONE_KV = 0.8
GONE_TICKS = 3  # a queue that stood so long and has been gone so long is no accident
COLLAPSED = 0.42  # below this share of what the resting window delivered, for a turnover,
COLLAPSED_HALF = 0.6  # or, in a narrower window, below this share of its share
COLLAPSED_SIGMAS = 4.0  # and by so much more than noise: the server has lost capacity

# Rest and probes.
BLOCK_ROWS = 128  # rows of a block of evidence, or one window if that is less
BLOCKS = 8  # blocks remembered of the resting window
DRIFT = 0.2  # log change of the rate, beyond twice its noise, that says the server changed
UP_PAYS = 1.03  # a wider window must deliver this much more,
DOWN_KEEPS = 0.985  # a narrower one may deliver this much less
SUSPECT = 1.15  # more than that from a narrower one may be the server's doing: look back
UP_SIGMAS = 1.5  # a wider one is kept before its time only on so much evidence
ANOTHER = 1.8  # so much more is the server's doing: look back first
DOUBT = 0.5  # sigmas in favour of a narrower window that cannot be told apart, after such a start
HOPELESS = 0.8  # a probe that delivers less than this is broken off
PROBE_TURNS = 3  # turnovers after which a probe is decided by the plain comparison
PAUSE_TURNS = (4.0, 48.0)  # turnovers between probes: after the first failure, and at most
PAUSE_GROWS = 1.5
LOOK_DOWN = (0.5, 2.0, 0.7, 1.4)  # after a climb that overshot
LOOK_FURTHER_DOWN = (0.25, 0.5, 1.4, 0.7, 2.0)  # the first only after a start that was a guess
LOOK_BACK = (0.7, 2.0, 0.5, 1.4)  # after a climb that fell
LOOK_AROUND = (0.7, 2.0, 1.4)
LOOK_UP = (2.0, 1.4, 0.7)
LOOK_BOTH_WAYS = (2.0, 0.7, 1.4)  # for ever after
LOOK_CLOSE = (1.4, 0.7)
QUEUE_SEEN = (1.4, 0.7)  # the gauge has told what a wide probe would
NEAREST = 1.15  # a probe nearer than this could not be told apart
FAR = 4.0  # real curves have plateaus that end: +10 % from 16 to 32, +114 % from 32 to 64

# Refusals.
USUAL_ROWS = 300  # outcomes over which the usual share of failures is learned
USUAL_MOST = 0.05  # a server that fails more than this is overloaded, whatever it did before
ONE_SEAT_FLOOR = 2  # the floor that yields, when at it
ONE_SEAT_ROWS = 4  # so many rows came back and more than twice as many were refused
PACED_STORM = 2.0  # refused with a wait, for each row that comes back: the window is what is refused
PLAIN_SHARE = 0.15  # less than this looks like bad luck once;
CONFIRM_TICKS = 3  # a second time within so many ticks it does not
STRAY_SHARE = 32  # a failure in so many may be nobody's limit: look again soon
STRAY_TURNS = 2.0
CREEP_TURNS = (8.0, 32.0)  # turnovers before the window is tried above what was refused: first, and at most


@dataclass
class Obs:
    """What one tick saw. Every field is optional: None, or 0 for counts, means that nothing is known.

    waiting, running: requests in the server, from its gauges.
    inflight: rows that hold a slot at the end of the tick.
    backpressure: attempts in this tick that failed for overload (refused without a wait, timed out, 5xx).
    successes: rows that came back in this tick.
    input_bound: the source or `to_request` could not fill the window.
    kv, hits: share of KV memory in use, and of prompt tokens found in the prefix cache (0-1).
    tok_s: tokens of the rows that came back, a second; None when no usage is reported.
    preempts: the engine's counter of preempted requests, since its start.
    latency_s: median time from sending to answer of recent rows, seconds.
    oldest_s: age of the oldest slot held, seconds.
    tick_s: length of this tick, seconds.
    rate_limited: attempts in this tick that were refused with a time to wait.
    engine_tokens: the engine's counters of prompt and generated tokens added up, since its start.
    """

    waiting: Optional[float] = None
    running: Optional[float] = None
    inflight: int = 0
    backpressure: int = 0
    successes: int = 0
    input_bound: bool = False
    kv: Optional[float] = None
    hits: Optional[float] = None
    tok_s: Optional[float] = None
    preempts: Optional[float] = None
    latency_s: Optional[float] = None
    oldest_s: Optional[float] = None
    tick_s: float = NOMINAL_TICK_S
    rate_limited: int = 0
    engine_tokens: Optional[float] = None


_COUNTS = frozenset(("inflight", "backpressure", "successes", "rate_limited"))


def _number(value: Any) -> Optional[float]:
    """`value` as a finite number of at least 0, else None: a gauge may be missing, NaN or nonsense."""
    try:
        x = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return x if math.isfinite(x) and x >= 0 else None


def _clean(obs: Union[Obs, Mapping[str, Any]]) -> Obs:
    """`obs` as an Obs that holds numbers only; unknown keys are dropped."""
    clean = Obs()
    for name in (f.name for f in fields(Obs)):
        value = obs.get(name) if isinstance(obs, Mapping) else getattr(obs, name, None)
        if name == "input_bound":
            clean.input_bound = value is True
        elif name in _COUNTS:
            setattr(clean, name, int(_number(value) or 0))
        else:
            setattr(clean, name, _number(value))
    clean.tick_s = clean.tick_s or NOMINAL_TICK_S
    return clean


def _whole(name: str, value: Any, least: Optional[int] = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


class Fixed:
    """A window that never moves. ValueError when `n` is below 1, TypeError when it is no whole number."""

    last_reason = "hold"

    def __init__(self, n: int) -> None:
        self.initial = _whole("Fixed(n)", n, 1)

    def decide(self, obs: Union[Obs, Mapping[str, Any]], limit: int) -> int:
        return self.initial


@dataclass
class _Evidence:
    """What came out over a stretch of ticks."""

    seconds: float = 0.0
    rows: float = 0.0
    tokens: float = 0.0  # of the rows that came back; 0 when no usage is reported
    counted: Optional[float] = 0.0  # by the engine's counters; None when a tick of it is unknown
    admitted: float = 0.0  # requests that the engine took in, prompts and all
    ticks: int = 0
    silent: int = 0  # ticks of those in which no row came back

    @property
    def bursts(self) -> bool:
        """Rows of one length come back together: then a few ticks say little about a rate."""
        return self.silent > 0 and self.rows > BURST_ROWS * self.ticks

    def add(self, more: _Evidence) -> None:
        self.seconds += more.seconds
        self.rows += more.rows
        self.tokens += more.tokens
        self.counted = None if self.counted is None or more.counted is None else self.counted + more.counted
        self.admitted += more.admitted
        self.ticks += more.ticks
        self.silent += more.silent

    def generated(self, prompt: float) -> Optional[float]:
        """Tokens counted less `prompt` for each request taken in. A burst of prompts after a widening would
        read as work; None when prompts are so much of it that the rest is noise."""
        if not self.counted:
            return None
        rest = self.counted - prompt * self.admitted
        return rest if rest > 0.25 * self.counted else None


def _sum(parts: Iterable[_Evidence]) -> _Evidence:
    total = _Evidence()
    for part in parts:
        total.add(part)
    return total


class _PromptTokens:
    """Learns how many tokens the engine counts when it takes a request in.

    Between two ticks at one window what is generated hardly differs, so what the counters differ by is the
    requests taken in: a regression of the one difference on the other, old ticks fading.
    """

    def __init__(self) -> None:
        self._xy = self._xx = 0.0

    def learn(self, before: _Evidence, after: _Evidence) -> None:
        if before.counted is not None and after.counted is not None:
            x, y = after.admitted - before.admitted, after.counted - before.counted
            self._xy, self._xx = 0.98 * self._xy + x * y, 0.98 * self._xx + x * x

    @property
    def mean(self) -> float:
        return max(0.0, self._xy / self._xx) if self._xx else 0.0


class _Failures:
    """Tells overload from a server that always fails a few: a share that was there before says nothing new."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._usual = 0.0
        self._quiet = CONFIRM_TICKS  # ticks since one that looked like overload

    def overload(self, failed: int, succeeded: int, widened: bool) -> bool:
        """Whether this tick's failures are overload. Those just after a widening are the widening's, not usual."""
        outcomes = failed + succeeded
        usual = self._usual * outcomes
        stray = failed == 1 and succeeded > 0
        expected = usual + 3 * math.sqrt(usual) + (usual > 0)
        looks = not stray and failed >= self._share * outcomes and failed > expected
        overload = looks and (failed >= PLAIN_SHARE * outcomes or self._quiet < CONFIRM_TICKS)
        self._quiet = 0 if looks else self._quiet + 1
        if outcomes and not widened:
            share = min(failed / outcomes, USUAL_MOST)
            self._usual += (share - self._usual) * min(1.0, outcomes / USUAL_ROWS)
        return overload


class _Queue:
    """What the gauges say of the server's queue, since the window was set.

    Believed only while they account for what is in flight: through a balancer they show one replica, and some
    servers do not count their HTTP layer.
    """

    def __init__(self) -> None:
        self._ticks = self._in_a_row = 0
        self._waiting = self._running = 0.0
        self._stood, self._empty, self._kv = False, 0, 0.0

    def read(self, o: Obs, acked: bool, target: int) -> None:
        believed = o.waiting is not None and o.running is not None and o.waiting + o.running >= 0.8 * o.inflight
        if not believed:
            self._in_a_row = 0
            return
        self._ticks += 1
        self._waiting += o.waiting or 0.0
        self._running += o.running or 0.0
        # Before the first answer a cold engine queues the whole window: no backlog.
        self._in_a_row = self._in_a_row + 1 if acked and (o.waiting or 0.0) >= max(1, target // 4) else 0
        self._stood = self._stood or self._in_a_row >= GONE_TICKS
        self._empty = self._empty + 1 if not o.waiting else 0
        self._kv = max(self._kv, o.kv or 0.0)

    @property
    def gone(self) -> bool:
        """At one and the same window a queue stood, and now nothing waits: the server has become larger. Where
        memory is what rows wait for, queues come and go with their lengths."""
        return self._stood and self._empty >= GONE_TICKS and self._kv < GONE_KV

    @property
    def standing(self) -> bool:
        return self._in_a_row >= 2

    @property
    def waiting(self) -> float:
        return self._waiting / max(1, self._ticks)

    @property
    def running(self) -> float:
        return self._running / max(1, self._ticks)


def _delta(now: Optional[float], before: Optional[float]) -> Optional[float]:
    """How far a counter moved; None when it is missing, new or was reset."""
    return None if now is None or before is None or now < before else now - before


def _change(now: Optional[float], before: Optional[float]) -> Optional[float]:
    return None if now is None or before is None else now - before


class Auto:
    """Finds the window. See the module's text for how.

    target_waiting: queue to keep in the server when its gauges show one: cut above twice this.
    initial, min_limit, max_limit: the first window (clamped) and its bounds. Up to 1024, where the public
        package stops at 512: big servers run more. A `min_limit` of 2 yields to 1 when the server keeps
        refusing the second of two requests; any other is kept whatever the server says.
    step: most by which a window that was refused is tried again.
    kv_hi, hits_lo: with KV memory this full and the prefix cache this cold, a preemption ends the climb.
    improve: what a doubling must deliver to pay, times the rate before.
    stall_ticks: least ticks of silence that are a stall (three latencies, when that is more).
    bp_frac: share of a tick's outcomes that must fail before failures count as overload.

    `last_reason` says what the last decision was:
        grow, probe, revert     widened; trying another window; back from one
        shrink                  a narrower window delivers as much, and is kept
        cut:bp, cut:stall, cut:queue
        hold                    nothing to judge: the window was not full
        hold:ack                waiting for rows to come back
        hold:plateau            resting
        hold:cooldown           after a cut, while the old window drains
        hold:input_bound, hold:floor, hold:ceiling
        hold:paced              refused with a time to wait: the pacer's business
    """

    def __init__(
        self,
        target_waiting: int = 8,
        initial: int = 16,
        min_limit: int = 2,
        max_limit: int = 1024,
        step: int = 8,
        kv_hi: float = 0.9,
        hits_lo: float = 0.5,
        improve: float = 1.05,
        stall_ticks: int = 3,
        bp_frac: float = 0.05,
    ) -> None:
        self.min_limit = _whole("min_limit", min_limit, 1)
        self.max_limit = _whole("max_limit", max_limit, min_limit)
        self._floor = min_limit
        self.step = _whole("step", step, 1)
        self.stall_ticks = _whole("stall_ticks", stall_ticks, 1)
        self.target_waiting, self.improve, self.bp_frac = target_waiting, improve, bp_frac
        self.kv_hi, self.hits_lo = kv_hi, hits_lo
        self.initial = self._clamp(_whole("initial", initial))
        self.last_reason = "hold"

        # the window in force, and what has come out of it
        self._window = 0  # 0: no tick yet
        self._before = 0  # the window before it
        self._held_s = 0.0  # seconds since it was set
        self._paced_refused = 0  # and refused with a time to wait since then
        self._since = _Evidence()  # all of its full ticks
        self._level = _Evidence()  # those after the first that had no more in flight
        self._block = _Evidence()  # drained, not yet taken up
        self._last = _Evidence()  # the last full tick
        self._recent: deque[_Evidence] = deque(maxlen=RECENT_TICKS)  # full ticks, the last ones
        self._inflight = 0
        self._first_s: Optional[float] = None  # what the first rows of the first window took
        self._guessed = self.initial > CAUTIOUS_START  # the first window, not yet judged
        self._queue = _Queue()

        # the search
        self._state = self._climb if self.initial <= CAUTIOUS_START else self._rest
        self._rungs: list[_Evidence] = []  # of the climb, one a window
        self._clean_start = False  # the first of them shows no burst of prompts
        self._home = self.initial  # the resting window
        self._known: deque[_Evidence] = deque(maxlen=BLOCKS)  # what it delivers
        self._drifted: list[_Evidence] = []  # blocks in a row that say otherwise
        self._tried: list[_Evidence] = []  # what the probe delivers
        self._plan: deque[float] = deque(LOOK_FURTHER_DOWN[1:])  # factors to probe next
        self._pause = 1.0  # turnovers between probes
        self._rested = 0.0  # turnovers since the last
        self._too_wide: Optional[int] = None  # a window that delivered clearly less than a narrower one
        self._trusted = 0.0  # turnovers since that was seen
        self._flat_above = True  # wider is no worse, so a plateau may end
        self._probe_saw_queue = self._queue_cut = self._queue_lied = False
        self._queue_doubted = False  # a wider window delivered more than what queued; not yet looked back

        # refusals and silence
        self._failures = _Failures(bp_frac)
        self._ceiling: Optional[int] = None  # the most the server has accepted
        self._below_ceiling = 0.0  # turnovers since it was last tried
        self._creep_pause = CREEP_TURNS[0]
        self._creeping = False
        self._accepted: Optional[int] = None  # where to go when the cooldown is over
        self._cooldown_s = 0.0
        self._patience_s = 0.0
        self._silent_s = 0.0
        self._stall_armed = False
        self._floor_ok = self._floor_refused = 0  # at the floor

        # counters of the server's, as last read
        self._prompt = _PromptTokens()
        self._engine_tokens: Optional[float] = None
        self._running: Optional[float] = None
        self._preempts: Optional[float] = None
        self._memory_full = False
        self._acked = False  # a row has come back

    def decide(self, obs: Union[Obs, Mapping[str, Any]], limit: int) -> int:
        """The next window, given what this tick saw at the window `limit`. Never raises on odd observations."""
        o = _clean(obs)
        limit = self._clamp(_number(limit) or self.initial)
        if limit != self._window:  # the first tick, or somebody else has set it
            if self._window:
                self._settle(limit)
            self._begin(self._window or limit, limit)
            self._home = limit
        full = self._read(o, limit)
        answer = self._safety(o, limit)
        if answer is None and not full:
            answer = self._hold(limit, "hold:input_bound" if o.input_bound else "hold")
        if answer is None:
            answer = self._queue_shown(o, limit)
        return self._state(limit) if answer is None else answer

    # -- what the tick says -----------------------------------------------------------------------------

    def _read(self, o: Obs, limit: int) -> bool:
        """Take the tick in. Whether the window was full, so that the tick is evidence."""
        counted = _delta(o.engine_tokens, self._engine_tokens)
        thrown_out = _delta(o.preempts, self._preempts) or 0.0
        taken_in = _change(o.running, self._running)
        if thrown_out or taken_in is None:
            counted = None  # work done twice is no work; a burst cannot be told
        self._engine_tokens, self._preempts, self._running = o.engine_tokens, o.preempts, o.running

        # High KV alone is how a full server looks; rows thrown out of it are the sign.
        cold = o.hits is None or o.hits < self.hits_lo
        self._memory_full = thrown_out > 0 and cold and (o.kv or 0.0) >= self.kv_hi
        self._acked = self._acked or o.successes > 0
        self._held_s += o.tick_s
        self._inflight = o.inflight
        if self._first_s is None and self._since.rows + o.successes >= max(DRAIN_ROWS // 2, limit // 16):
            self._first_s = o.latency_s
        self._queue.read(o, self._acked, self.target_waiting)
        now = _Evidence(o.tick_s, o.successes, (o.tok_s or 0.0) * o.tick_s, counted, o.successes + (taken_in or 0.0), 1)
        now.silent = int(not o.successes)

        # Where rows are shorter than a tick, the moment the tick ends says little about how full the window was.
        in_use = max(o.inflight, o.successes * (o.latency_s or 0.0) / o.tick_s)
        if o.input_bound or (in_use < int(0.8 * limit) and o.successes < 2 * limit):
            self._since.rows += o.successes  # they drain the window all the same
            return False
        if self._since.rows >= max(self._before, limit):
            self._block.add(now)
        if self._since.ticks:
            self._prompt.learn(self._last, now)
            if o.inflight <= 1.05 * limit:
                self._level.add(now)
        drained = max(self._before, limit)
        if self._since.rows < drained <= self._since.rows + now.rows:
            self._recent.clear()  # what a window before left behind comes in waves
        self._since.add(now)
        self._recent.append(now)
        self._last = now
        return True

    def _gain(self, new: _Evidence, old: _Evidence) -> float:
        """Rate of `new` over that of `old`, in the best unit that both have."""
        if new.seconds <= 0 or old.seconds <= 0:
            return 1.0
        slower = old.seconds / new.seconds
        a, b = new.generated(self._prompt.mean), old.generated(self._prompt.mean)
        if a and b:
            return a / b * slower
        if not old.rows:
            return math.inf if new.rows else 1.0
        rows = new.rows / old.rows * slower
        if new.tokens and old.tokens:  # rows err to the short ones, tokens to the long: between them
            return math.sqrt(rows * new.tokens / old.tokens * slower)
        return rows

    def _noise(self, new: _Evidence, old: _Evidence) -> float:
        """One sigma of `_gain`, as a share."""
        counted = new.generated(self._prompt.mean) and old.generated(self._prompt.mean)
        one = COUNTED_NOISE if counted else DELIVERED_NOISE
        return one * math.sqrt(1 / max(1.0, new.rows) + 1 / max(1.0, old.rows))

    # -- moves ------------------------------------------------------------------------------------------

    def _clamp(self, n: float) -> int:
        return int(min(max(n, self._floor), self.max_limit))

    def _begin(self, before: int, window: int) -> None:
        self._before, self._window, self._held_s = before, window, 0.0
        self._since, self._level, self._block = _Evidence(), _Evidence(), _Evidence()
        self._recent.clear()
        self._queue = _Queue()
        self._paced_refused = 0

    def _hold(self, limit: int, reason: str) -> int:
        self.last_reason = reason
        return limit

    def _move(self, limit: int, new: float, reason: str) -> int:
        window = self._clamp(new)
        if window != limit:
            self._begin(limit, window)
        return self._hold(window, reason)

    def _settle(
        self, home: float, plan: Iterable[float] = LOOK_DOWN, pause: float = 1.0, known: Iterable[_Evidence] = ()
    ) -> None:
        """Rest at `home`, with `plan` to probe next, the first after `pause` turnovers."""
        self._state, self._home = self._rest, self._clamp(home)
        self._known = deque(known, maxlen=BLOCKS)
        self._plan, self._pause, self._rested, self._drifted = deque(plan), pause, 0.0, []

    # -- signs that need no measurement -----------------------------------------------------------------

    def _safety(self, o: Obs, limit: int) -> Optional[int]:
        if self._cooldown_s > 0 or self._draining(o):
            self._cooldown_s -= o.tick_s
            self._silent_s = 0.0
            return self._hold(limit, "hold:cooldown")
        self._patience_s = 0.0
        self._stall_armed = self._stall_armed or o.successes > 0
        self._silent_s = self._silent_s + o.tick_s if o.inflight >= limit and not o.successes else 0.0
        widened = self._held_s <= 2.5 * o.tick_s

        self._one_seat(o, limit)
        if self._failures.overload(o.backpressure, o.successes, widened):
            return self._refused(o, limit, widened)
        if self._stall_armed and self._silent_s >= max(self.stall_ticks * o.tick_s, 3 * (o.latency_s or 0.0)):
            return self._cut(o, limit, "cut:stall")
        if o.rate_limited:
            return self._paced(o, limit, widened)
        if self._accepted is not None and not o.input_bound:
            accepted, self._accepted = self._accepted, None
            if accepted > limit:
                self._settle(accepted, LOOK_CLOSE, self._creep_pause)
                return self._move(limit, accepted, "grow")
        return None

    def _one_seat(self, o: Obs, limit: int) -> None:
        """Two are too many for a server that answers one and refuses the other: then the floor of 2 yields."""
        if limit != ONE_SEAT_FLOOR or self._floor != ONE_SEAT_FLOOR:
            self._floor_ok = self._floor_refused = 0
            return
        self._floor_ok += o.successes
        self._floor_refused += o.backpressure + o.rate_limited
        if self._floor_ok >= ONE_SEAT_ROWS and self._floor_refused >= max(2 * ONE_SEAT_ROWS, self._floor_ok):
            self._floor = 1

    def _draining(self, o: Obs) -> bool:
        """After a cut: whether rows of the window before are still out, for as long as that is bearable."""
        return self._held_s <= self._patience_s and o.oldest_s is not None and o.oldest_s > self._held_s

    def _cut(self, o: Obs, limit: int, reason: str) -> int:
        self._silent_s, self._stall_armed = 0.0, False
        if limit == self._floor:
            return self._hold(limit, "hold:floor")
        self._cooldown_s = max(2 * o.tick_s, o.latency_s) if o.latency_s else 3 * o.tick_s
        self._patience_s = max(self.stall_ticks * o.tick_s, 3 * (o.latency_s or 0.0))
        self._settle(limit // 2, LOOK_UP, PAUSE_TURNS[0])
        return self._move(limit, limit // 2, reason)

    def _refused(self, o: Obs, limit: int, widened: bool) -> int:
        """A server that refuses at once, just after a widening, has said what it accepts: all but those."""
        if widened:
            accepted = self._learn_ceiling(limit, o.backpressure)
            if self._state == self._probe and self._home <= accepted:
                return self._back(limit)
            self._accepted = accepted
        return self._cut(o, limit, "cut:bp")

    def _learn_ceiling(self, limit: int, failed: int) -> int:
        """What the server accepts, when it refused `failed` of a window of `limit`."""
        accepted = self._clamp(max(limit // 2, limit - failed))
        self._ceiling, self._below_ceiling = accepted, 0.0
        self._creep_pause = STRAY_TURNS if failed <= limit // STRAY_SHARE else self._creep_pause
        return accepted

    def _paced(self, o: Obs, limit: int, widened: bool) -> int:
        """A contract, not a capacity: no cut. But a widening that met it is taken back, and so is a window of
        which hardly anything comes back: a contract that is kept to by waiting refuses few."""
        self._paced_refused += o.rate_limited
        storm = not widened and self._paced_refused > PACED_STORM * (self._since.rows + 1)
        if storm or (widened and o.successes):
            accepted = self._learn_ceiling(limit, o.rate_limited)
            if accepted < limit:
                self._settle(accepted, LOOK_CLOSE, self._creep_pause)
                return self._move(limit, accepted, "revert")
        return self._hold(limit, "hold:paced")

    def _queue_shown(self, o: Obs, limit: int) -> Optional[int]:
        """A standing queue says that all seats are taken: keep what is running and a small reserve."""
        if self._queue_lied or self._queue_doubted or not self._queue.standing:
            return None
        if self._state in (self._probe, self._descend):
            return None
        if self._queue.waiting > 2 * self.target_waiting and o.inflight <= 1.1 * limit:
            new = self._clamp(self._queue.running + self.target_waiting)
            if new < limit:
                self._queue_cut = True
                self._settle(new, QUEUE_SEEN, CREEP_TURNS[0])
                return self._move(limit, new, "cut:queue")
        return None

    # -- climb ------------------------------------------------------------------------------------------

    def _climb(self, limit: int) -> int:
        since, counted = self._since, self._last.generated(self._prompt.mean) is not None
        if not since.rows:
            return self._hold(limit, "hold:ack")
        if self._memory_full or (self._queue.standing and not self._queue_lied):
            self._settle(limit, QUEUE_SEEN, CREEP_TURNS[0])
            return self._hold(limit, "hold:plateau")
        top = self.max_limit if self._ceiling is None else min(self.max_limit, self._ceiling)
        before = self._rungs[-1] if self._rungs else None
        if counted:
            if self._rungs and not self._level.ticks:  # the first tick is the burst of prompts
                return self._hold(limit, "hold:ack")
            rung = _sum([self._level if self._level.ticks else self._last])
            need = self.improve
            self._clean_start = self._clean_start or (not self._rungs and self._level.ticks > 0)
        else:
            if since.rows < self._before:
                return self._hold(limit, "hold:ack")
            rung = _sum([since])
            need = self.improve + (0.5 * self._noise(rung, before) if before else 0.0)
        gain = math.inf
        if before is not None:
            # In its first turnover a window answers with the rows of the one before, at its own speed: that is
            # half of its rate. From the second widening on, both periods are like that, and the halves cancel.
            like = 1.0 if counted or len(self._rungs) > 1 else 0.5
            gain = self._gain(rung, before) / like
            if counted and len(self._rungs) < 2 and not self._clean_start:
                gain = math.inf  # the start has no clean tick to compare with
            if counted and gain < need and since.ticks < PATIENT_TICKS:
                return self._hold(limit, "hold:ack")
            if not counted and len(self._rungs) == 1 and gain * like < DOUBTFUL:
                # Less than the first window itself delivered: nothing that pays does that. Wait until it has drained.
                if self._block.rows < self._before:
                    return self._hold(limit, "hold:ack")
                rung = self._block
                gain = self._gain(rung, before) / FROM_EMPTY
            if not counted and gain < need and since.bursts:
                if self._block.rows < limit:
                    return self._hold(limit, "hold:ack")
                rung = self._block
                gain = self._gain(rung, before)
            if gain < FELL:
                # The first widening is hardly judged, so a fall at the second puts it in doubt as well.
                home = self._before if counted or len(self._rungs) > 2 else self.initial
                if counted:  # a blind climb is not judged drained
                    self._fell_at(limit)
                self._settle(home, LOOK_BACK if gain < FAR_PAST else LOOK_AROUND)
                return self._move(limit, home, "revert")
            if gain < need:
                self._settle(limit)
                return self._hold(limit, "hold:plateau")
        self._rungs.append(rung)
        if limit >= top:
            if self._ceiling is None and gain < PLAINLY_PAYS:
                self._settle(limit)
            else:
                self._settle(limit, LOOK_CLOSE, CREEP_TURNS[0])
            return self._hold(limit, "hold:ceiling")
        return self._move(limit, min(2 * limit, top), "grow")

    # -- rest -------------------------------------------------------------------------------------------

    def _next_block(self, limit: int) -> Optional[_Evidence]:
        if self._block.rows < min(limit, BLOCK_ROWS) or self._block.ticks < 2:
            return None
        block, self._block = self._block, _Evidence()
        return block

    def _rest(self, limit: int) -> int:
        if self._queue.gone:
            self._too_wide = None
            self._settle(limit)
            self._state, self._rungs, self._clean_start = self._climb, [], False
            self._queue = _Queue()
            return self._climb(limit)
        if self._blind:
            if self._guessed and self._guess_queues(limit):
                delivering = [i for i, tick in enumerate(self._recent) if tick.rows]
                after = _sum(list(self._recent)[delivering[0] + 1 :])
                # Those that came first did not queue: by Little's law, so many run.
                run = after.rows / max(after.seconds, 1e-9) * (self._first_s or 0.0)
                return self._start_descent(limit, [after], min(limit / 2, max(2 * run, limit / 16)))
            fallen = self._collapsed(limit, COLLAPSED)
            if fallen is not None:
                self._too_wide = None
                return self._start_descent(limit, fallen, limit / 2)
        block = self._next_block(limit)
        if block is None or self._server_changed(block, limit):
            return self._hold(limit, "hold:plateau")
        self._known.append(block)
        turnovers = block.rows / limit
        self._rested += turnovers
        self._below_ceiling += turnovers
        self._trusted += turnovers
        if self._trusted > FELL_TURNS:
            self._too_wide = None
        if self._rested < self._pause:
            return self._hold(limit, "hold:plateau")
        self._rested = 0.0
        return self._start_probe(limit)

    def _server_changed(self, block: _Evidence, limit: int) -> bool:
        """Two blocks in a row that deliver something else: forget what was known, and look again."""
        if len(self._known) < 2:
            return False
        known = _sum(self._known)
        gain = self._gain(block, known)
        if abs(math.log(max(gain, 0.01))) <= DRIFT + 2 * self._noise(block, known):
            self._drifted = []
            return False
        self._drifted.append(block)
        if len(self._drifted) < 2:
            return False
        self._too_wide = None
        self._settle(limit, LOOK_UP if gain > 1 else LOOK_DOWN, known=self._drifted)
        return True

    # -- the way down -----------------------------------------------------------------------------------

    @property
    def _blind(self) -> bool:
        return self._last.generated(self._prompt.mean) is None

    def _guess_queues(self, limit: int) -> bool:
        """Whether most of a guessed first window waits in the server: long after its first rows came back, most of
        it has not. Without a queue it would all be back, or nearly."""
        since, first_s = self._since, self._first_s
        if since.rows >= limit or limit != self.initial:
            self._guessed = False
        if not self._guessed or first_s is None or since.rows < 2 * DRAIN_ROWS:
            return False
        return self._held_s >= GUESSED_LATE * first_s and since.rows < GUESSED_BACK * limit

    def _collapsed(self, limit: int, share: float) -> Optional[list[_Evidence]]:
        """The last ticks, when they deliver so much less than the resting window did that nobody need wait for
        two blocks: by a turnover or two or four, since rows may come in bursts."""
        known = _sum(self._known)
        if not known.rows or len(self._known) < 2 or self._home <= WIDE:
            return None
        turnover_s = limit * known.seconds / known.rows
        ticks: list[_Evidence] = []
        recent, spans = _Evidence(), 1.0
        for tick in reversed(self._recent):
            ticks.append(tick)
            recent.add(tick)
            if recent.seconds < spans * turnover_s or len(ticks) < 3:
                continue
            expected = known.rows * recent.seconds / known.seconds
            noise = DELIVERED_NOISE * math.sqrt(1 / expected + 1 / known.rows)
            # Longer rows are fewer, and a widened window answers with short ones first: both must have fallen.
            slower = known.seconds / recent.seconds
            gain = recent.rows / known.rows * slower
            if known.tokens:
                gain = max(gain, recent.tokens / known.tokens * slower)
            bursts = expected > BURST_ROWS * recent.ticks and recent.silent
            if not bursts and gain < share and 1 - gain > COLLAPSED_SIGMAS * noise:
                return ticks
            spans *= 2
            if spans > 4:
                break
        return None

    def _start_descent(self, limit: int, known: Iterable[_Evidence], to: float) -> int:
        self._guessed = False
        new = self._clamp(to)
        if new == limit:
            return self._hold(limit, "hold:floor")
        self._settle(limit, known=[_sum(known)])
        self._state = self._descend
        return self._move(limit, new, "probe")

    def _descend(self, limit: int) -> int:
        """Half of the window, and nothing is sent until it has drained to that: a queue in the server delivers the
        same all the while, and then half of the half may do."""
        draining = self._inflight > 1.05 * limit or self._since.rows < DRAIN_ROWS
        few = limit < WIDE and (self._level.ticks < 2 or self._since.rows < 1.5 * limit)
        if draining or few:
            return self._hold(limit, "hold:ack")
        known = _sum(self._known)
        guess = self.initial > CAUTIOUS_START
        doubt = self._noise(self._since, known) if guess else 0.0  # the first rows alone set its mark
        if self._gain(self._since, known) < KEEPS - doubt:
            home = min(self._home, 2 * limit)
            # After a guess, what is measured next is compared with little: take time to know the window first.
            self._settle(home, LOOK_BACK if guess else LOOK_UP, PAUSE_TURNS[0] if guess else 1.0)
            return self._move(limit, home, "revert")
        known.add(self._since)
        new = self._clamp(limit // 2)
        if new == limit:
            self._settle(limit, LOOK_UP)
            return self._hold(limit, "shrink")
        self._home, self._known = limit, deque([known], maxlen=BLOCKS)
        return self._move(limit, new, "shrink")

    # -- probe ------------------------------------------------------------------------------------------

    def _start_probe(self, limit: int) -> int:
        queue = self._queue.standing and not self._queue_lied
        if not self._plan:
            self._plan.extend(QUEUE_SEEN if queue else LOOK_BOTH_WAYS + (FAR,) * self._flat_above)
        new = self._clamp(round(limit * self._plan.popleft()))
        if self._too_wide is not None and new >= self._too_wide > limit:
            new = int(math.sqrt(limit * self._too_wide))
            if new < NEAREST * limit:  # nothing between them worth a look: the next in the plan
                return self._start_probe(limit) if self._plan else self._hold(limit, "hold:plateau")
        self._creeping = False
        if self._ceiling is not None and new > max(limit, self._ceiling):
            new = self._ceiling
            if self._below_ceiling >= self._creep_pause:
                self._below_ceiling, self._creep_pause = 0.0, min(CREEP_TURNS[1], 1.5 * self._creep_pause)
                self._creeping = True
                new = self._clamp(self._ceiling + max(1, min(self.step, self._ceiling // 16)))
        if new == limit:
            return self._hold(limit, "hold:ceiling")
        self._state, self._tried, self._drifted, self._probe_saw_queue = self._probe, [], [], queue
        return self._move(limit, new, "probe")

    def _probe(self, limit: int) -> int:
        known, since, up = _sum(self._known), self._since, limit > self._home
        if self._creeping and since.ticks >= 2 and since.rows >= limit // 4:
            self._ceiling, self._creeping = None, False  # not refused any more
            self._creep_pause = CREEP_TURNS[0]
            return self._move(limit, 2 * self._home, "probe")
        if not up and self._blind and self._home > WIDE:
            # A narrower window delivers its share of the wider at the least: less is the server's doing.
            fallen = self._collapsed(limit, COLLAPSED_HALF * limit / self._home)
            if fallen is not None:
                self._too_wide = None
                return self._start_descent(limit, fallen, limit / 2)
        if self._hopeless(limit, known):
            self._flat_above = self._flat_above and not up
            if up:
                self._fell_at(limit)
            return self._back(limit)
        block = self._next_block(limit)
        if block is None:
            return self._hold(limit, "hold:ack")
        self._tried.append(block)
        tried = _sum(self._tried)
        gain, bar = self._gain(tried, known), UP_PAYS if up else DOWN_KEEPS
        noise = self._noise(tried, known)
        if abs(gain - bar) < (UP_SIGMAS * noise if gain > bar and up else noise):
            if tried.rows < PROBE_TURNS * limit:
                return self._hold(limit, "hold:ack")
            if up or self.initial > CAUTIOUS_START:
                bar += DOUBT * noise if up else -DOUBT * noise
        if limit > 1.5 * self._home:
            self._flat_above = gain > 0.95
        if up and gain < FELL:
            self._fell_at(limit)
        elif not up and 1 / FELL + FELL_SIGMAS * noise < gain < ANOTHER:
            self._fell_at(self._home)
        return self._back(limit) if gain < bar else self._stay(limit, gain)

    def _fell_at(self, window: int) -> None:
        """What is past the knee is not looked at again for a while."""
        self._too_wide, self._trusted = min(window, self._too_wide or window), 0.0

    def _hopeless(self, limit: int, known: _Evidence) -> bool:
        """Whether a probe delivers so much less that more rows through it would be wasted."""
        prompt = self._prompt.mean
        if self._last.generated(prompt) and known.generated(prompt):
            level = self._level
            fewer = (
                level.counted is not None
                and known.counted is not None
                and (level.counted * known.seconds < HOPELESS * known.counted * level.seconds)
            )
            return level.ticks >= 2 and fewer and self._gain(level, known) < HOPELESS
        # The rows that were there before a widening by f come back at 1/f of the wider window's rate, or faster.
        wider, back = limit / self._home, self._since.rows
        return wider > 1 and self._home <= back < 1.5 * self._home and self._gain(self._since, known) < HOPELESS / wider

    def _stay(self, limit: int, gain: float) -> int:
        factor = limit / self._home
        self._flat_above, self._queue_doubted = True, False
        plan: tuple[float, ...]
        if factor > 1:
            plan = LOOK_UP
            if (self._probe_saw_queue or self._queue_cut) and not self._queue_lied:
                self._queue_doubted, plan = True, (1 / factor, *LOOK_UP)
        elif gain > ANOTHER:
            plan = (1 / factor, factor, 1.4)
        elif gain > SUSPECT:
            plan = (factor, 1 / factor, 1.4)
        elif factor > 0.6:
            plan = LOOK_AROUND
        else:
            plan = LOOK_FURTHER_DOWN if self.initial > CAUTIOUS_START else LOOK_FURTHER_DOWN[1:]
        self._settle(limit, plan, known=self._tried)
        return self._hold(limit, "grow" if factor > 1 else "shrink")

    def _back(self, limit: int) -> int:
        self._state = self._rest
        if self._queue_doubted and limit < self._home:
            self._queue_lied, self._queue_doubted = True, False
        first, most = PAUSE_TURNS
        self._pause = min(most, max(first, self._pause * PAUSE_GROWS))
        return self._move(limit, self._home, "revert")
