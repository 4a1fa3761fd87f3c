"""What is being streamed at this moment, and what has been: for the metrics and the page that shows them."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Optional

from shuflr.server.streaming import Stream

log = logging.getLogger("shuflr")


@dataclass
class Totals:
    """What the streams of one dataset over one transport came to."""

    streams: int = 0
    active: int = 0
    records: int = 0
    bytes: int = 0
    dropped: int = 0  # records beyond 16 MiB, left out
    errors: int = 0
    blocked_on_client: float = 0.0  # seconds
    blocked_on_memory: float = 0.0


@dataclass(eq=False)
class LiveStream:
    """A stream that is being sent: the edge says when it waits for its client, the rest is read off the stream.

    number: no other stream of the process has it."""

    number: int
    stream: Stream
    transport: str
    peer: str
    began: float = field(default_factory=time.time)
    _blocked: float = 0.0
    _blocked_since: Optional[float] = None

    @contextmanager
    def waiting_for_client(self) -> Iterator[None]:
        """Counts the time in which the client takes nothing."""
        self._blocked_since = began = time.monotonic()
        try:
            yield
        finally:
            self._blocked_since = None
            self._blocked += time.monotonic() - began

    @property
    def blocked_on_client(self) -> float:
        """Seconds, up to now."""
        blocked, since = self._blocked, self._blocked_since
        return blocked if since is None else blocked + time.monotonic() - since

    @cached_property
    def total_records(self) -> Optional[int]:
        """Of the whole stream, if that was known when it was asked for first: adding up a rank's frames takes time."""
        return self.stream.plan.total_records

    @property
    def dataset(self) -> str:
        return self.stream.plan.dataset.id


class Live:
    """All streams of a process. Any thread may look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._streams: dict[LiveStream, None] = {}
        self._totals: dict[tuple[str, str], Totals] = {}

    @contextmanager
    def showing(self, stream: Stream, transport: str, peer: str) -> Iterator[LiveStream]:
        """Shows a stream as long as it runs, adds it to the totals afterwards, and closes it; an exception other than
        the client's leaving (ConnectionError) counts as an error."""
        with self._lock:
            self._count += 1
            live = LiveStream(self._count, stream, transport, peer)
            self._streams[live] = None
        failed: Optional[BaseException] = None
        try:
            yield live
        except BaseException as error:
            failed = error
            raise
        finally:
            stream.close()
            if stream.dropped:
                log.warning("%s: %s: %d records beyond 16 MiB were left out", peer, live.dataset, stream.dropped)
            with self._lock:
                del self._streams[live]
                totals = self._totals.setdefault((live.dataset, transport), Totals())
                totals.streams += 1
                totals.errors += failed is not None and not isinstance(failed, ConnectionError)
                _add(totals, live)

    def streams(self) -> "list[LiveStream]":
        """Those that run now, the oldest first."""
        with self._lock:
            return list(self._streams)

    def totals(self) -> "dict[tuple[str, str], Totals]":
        """By dataset and transport, running streams included."""
        with self._lock:
            found = {key: Totals(**vars(totals)) for key, totals in self._totals.items()}
            for live in self._streams:
                totals = found.setdefault((live.dataset, live.transport), Totals())
                totals.streams += 1
                totals.active += 1
                _add(totals, live)
            return found


def _add(totals: Totals, live: LiveStream) -> None:
    totals.records += live.stream.records - (live.stream.resumed_at or 0)
    totals.bytes += live.stream.bytes
    totals.dropped += live.stream.dropped
    totals.blocked_on_client += live.blocked_on_client
    totals.blocked_on_memory += live.stream.waited
