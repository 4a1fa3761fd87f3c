"""Which attempts will not be answered any more. Pure: ticks and latencies in, an age out.

A server that accepted a request and forgot it looks, to the socket, like one that works on it. Two signs tell them
apart long before the read time-out does, and both are only believed on good evidence:

* the forecast: nothing in the last answers took a tenth as long as this attempt has;
* the idle server: its gauges, which have shown our requests before, say for several ticks that nothing runs and
  nothing waits, and nothing comes back either.

Invariant: an attempt younger than `FORECAST_AT_LEAST_S` is never given up by the forecast, and none by an idle server
that is younger than the idleness.
"""

from __future__ import annotations

from typing import Any, Optional

FORECAST_FACTOR = 10.0
"""Generation lengths are skewed, but ten times the longest of the last `FORECAST_FROM` is no tail any more."""

FORECAST_FROM = 64
FORECAST_AT_LEAST_S = 60.0

IDLE_TICKS = 5
COVERING_SHARE = 0.8
"""A gauge that has shown this share of our requests speaks for all of them: it is not one replica's of several."""


class Overdue:
    """Follows the ticks of one client."""

    def __init__(self) -> None:
        self._covers = False
        self._idle_ticks = 0
        self._idle_s = 0.0

    def tick(self, record: dict[str, Any], tick_s: float) -> None:
        """Takes in one tick's record, `tick_s` seconds long."""
        waiting, running, inflight = record["waiting"], record["running"], record["inflight"]
        if waiting is None or running is None:
            self._idle_ticks, self._idle_s = 0, 0.0
            return
        if inflight and waiting + running >= COVERING_SHARE * inflight:
            self._covers = True
        if inflight and not waiting and not running and not record["ok"]:
            self._idle_ticks += 1
            self._idle_s += tick_s
        else:
            self._idle_ticks, self._idle_s = 0, 0.0

    def age_s(self, longest_s: Optional[float], samples: int) -> Optional[float]:
        """The age from which an attempt is given up; None when nothing says that one should be.

        longest_s: the longest of the last `samples` latencies, None without any.
        """
        ages = []
        if longest_s is not None and samples >= FORECAST_FROM:
            ages.append(max(FORECAST_AT_LEAST_S, FORECAST_FACTOR * longest_s))
        if self._covers and self._idle_ticks >= IDLE_TICKS:
            ages.append(self._idle_s)
        return min(ages, default=None)
