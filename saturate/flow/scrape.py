"""Reads an endpoint's /metrics for the controller thread; the names are gauges.py's business.

Invariant: never raises and never blocks the controller for longer than `TIMEOUT_S`; an endpoint without gauges is
asked again only now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Optional

from saturate.flow.gauges import Gauges, parse

log = logging.getLogger("saturate")

TIMEOUT_S = 5.0
MISSES_UNTIL_BLIND = 5
BLIND_READS_PER_TRY = 30
"""While blind, one real try per this many reads: about a minute of ticks."""

MAX_PAGE_BYTES = 16 << 20


class MetricsPage:
    """`read()` gives the gauges of `{root}/metrics`, or None. `dialect` names the engine once one was recognised."""

    def __init__(self, root: str, headers: Mapping[str, str]):
        self.dialect: Optional[str] = None
        self._url = f"{root}/metrics"
        self._headers = dict(headers)
        self._session: Any = None
        self._misses = 0
        self._blind_reads = 0

    def read(self) -> Optional[dict[str, Optional[float]]]:
        """One reading, or None when the page could not be had or names no known gauge."""
        if self._misses >= MISSES_UNTIL_BLIND:
            self._blind_reads += 1
            if self._blind_reads % BLIND_READS_PER_TRY:
                return None
        gauges = self._fetch()
        if gauges is None:
            self._misses += 1
            if self._misses == MISSES_UNTIL_BLIND:
                log.info("no engine gauges at %s: the window is found from throughput alone", self._url)
            return None
        if self._misses >= MISSES_UNTIL_BLIND:
            log.info("engine gauges at %s are back (%s)", self._url, gauges.dialect)
        self._misses = self._blind_reads = 0
        self.dialect = gauges.dialect
        return gauges.read_dict()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _fetch(self) -> Optional[Gauges]:
        # Imported here: it costs a tenth of a second that a run without gauges need not pay at import.
        import requests

        if self._session is None:
            self._session = requests.Session()
        try:
            with self._session.get(self._url, headers=self._headers, timeout=TIMEOUT_S, stream=True) as page:
                body = page.raw.read(MAX_PAGE_BYTES, decode_content=True)
        except Exception:
            # Whatever it is (refused, reset, slow, not HTTP): there is no reading, which is an ordinary case.
            return None
        return parse(body.decode("utf-8", "replace"))
