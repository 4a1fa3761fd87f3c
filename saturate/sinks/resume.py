"""The done-set: which ids an output already has.

The manifest's sidecars are an index of the parts; a part whose sidecar is missing or unreadable is scanned. Every set
returned here is exact: an id is in it only if a record with exactly that id was read. Files are read several at once
and let go of one by one, so the memory it takes is that of the ids.

Two answers exist. What a run may skip (`durable_ids`, `done_ids`): a sidecar counts only while its part is there and
whole, for to pay again is better than to lose a row without a word. And what every reader of the contract answers
(`existing_ids`), which believes a readable sidecar alone; it logs where the two differ.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from saturate.sinks import layout
from saturate.sinks.store import Location, Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from saturate.rows.seen import IdSet
    from saturate.sinks.part import DoneIds

logger = logging.getLogger("saturate")

_MANY_SIDECARS = 1000
# At least, on a machine with few cores: a mounted file system may be far away, too.
LOCAL_READ_WORKERS = 4
_TRY_AGAIN_AFTER_S = (0.5, 1.0)

_Take = Callable[["pa.ChunkedArray"], object]


def existing_ids(out_uri: Location, retry_errors: bool = False) -> set[str]:
    """The ids that an output's manifest and parts name; with `retry_errors`, only those with a success among them.

    The same answer as any reader of the contract gives, so an id counts also if its sidecar has outlived its part: a
    run through `ParquetSink` pays for such an id again. Creates nothing; a missing directory has no ids. Raises
    whatever the store raises when it cannot be listed.
    """
    ids, lost = _proven_and_lost(open_store(out_uri), retry_errors, 16)
    ids |= lost
    return ids


def durable_ids(store: Store, retry_errors: bool, read_workers: int) -> set[str]:
    """The ids whose record is in a part that is there and whole; with `retry_errors`, only those with a success."""
    return _proven_and_lost(store, retry_errors, read_workers)[0]


def _proven_and_lost(store: Store, retry_errors: bool, read_workers: int) -> tuple[set[str], set[str]]:
    """The ids in whole parts, and those that only a sidecar without one names."""
    ids: set[str] = set()
    lost: set[str] = set()
    index = _Index(store, read_workers, retry_errors)
    index.read_proven(lambda column: ids.update(column.to_pylist()))
    index.read_unproven(lambda column: lost.update(column.to_pylist()))
    lost -= ids
    index.report(len(lost))
    return ids, lost


def done_ids(store: Store, retry_errors: bool, read_workers: int) -> IdSet:
    """The same ids, of which one can only ask whether one is among them: in a tenth of the memory."""
    from saturate.rows.seen import IdSet

    ids, lost = IdSet(), IdSet()
    index = _Index(store, read_workers, retry_errors)
    index.read_proven(ids.update)
    ids.settle()
    index.read_unproven(lambda column: lost.update(column, unless_in=ids))
    lost.settle()
    index.report(len(lost))
    return ids


class _Index:
    """The sidecars and parts of an output, read a few at a time; `take` is given their ids, by several threads."""

    def __init__(self, store: Store, read_workers: int, retry_errors: bool) -> None:
        self._store = store
        # Threads wait for a remote store; for files that the system has at hand they get in each other's way.
        useful = max(LOCAL_READ_WORKERS, os.cpu_count() or 1) if store.local else read_workers
        self._read_workers = min(read_workers, useful)
        self._retry_errors = retry_errors
        self._unreadable: list[str] = []
        self._unproven: list[str] = []
        # Sidecars first: a shard that runs meanwhile writes each part before its sidecar, so that every sidecar seen
        # here has its part in the listing that follows.
        self._sidecars = sorted(filter(None, map(layout.part_of_sidecar, self._list(layout.MANIFEST))))
        self._sizes = {name: size for name, size in self._list("").items() if layout.is_part(name)}

    def read_proven(self, take: _Take) -> None:
        """The ids of parts that are there and whole, from their sidecars where they have one."""
        sidecars = self._sidecars
        if not sidecars and not self._sizes:
            return
        from saturate.sinks.part import read_done

        if len(sidecars) > _MANY_SIDECARS:
            logger.info(
                "%d sidecars to read: fewer, larger parts (flush_every, saturate compact) resume faster", len(sidecars)
            )
        unscanned = set(self._sizes)

        def take_sidecar(part: str) -> None:
            done = self._read_sidecar(part)
            if done is None:
                return
            if self._is_whole(part, done.part_bytes):
                unscanned.discard(part)
                self._give(done, take)
            else:
                self._unproven.append(part)

        def take_part(part: str) -> None:
            self._give(self._read(part, lambda: read_done(self._store, part, self._retry_errors)), take)

        _side_by_side(take_sidecar, sidecars, self._read_workers)
        _side_by_side(take_part, sorted(unscanned), self._read_workers)

    def read_unproven(self, take: _Take) -> None:
        """The ids of sidecars whose part is missing or torn; call it after `read_proven`."""
        _side_by_side(lambda part: self._give(self._read_sidecar(part), take), self._unproven, self._read_workers)

    def _give(self, done: DoneIds | None, take: _Take) -> None:
        if done is not None:
            take(done.ids)

    def _read_sidecar(self, part: str) -> DoneIds | None:
        from saturate.sinks.part import read_done_in_sidecar

        return self._read(layout.sidecar_of(part), lambda: read_done_in_sidecar(self._store, part, self._retry_errors))

    def _is_whole(self, part: str, recorded: int | None) -> bool:
        from saturate.sinks.part import ends_like_parquet

        size = self._sizes.get(part)
        if size is None:
            return False
        if recorded is not None:
            return size == recorded
        try:
            return ends_like_parquet(self._store, part, size)
        except Exception:
            return False

    def _list(self, directory: str) -> dict[str, int]:
        for pause in _TRY_AGAIN_AFTER_S:
            try:
                return self._store.listing(directory)
            except Exception as error:
                logger.warning("cannot list %s: %s: %s; trying again", self._store.uri, type(error).__name__, error)
                time.sleep(pause)
        return self._store.listing(directory)

    def _read(self, name: str, read: Callable[[], DoneIds]) -> DoneIds | None:
        """What a file says, or None if it cannot be read: an error of Arrow's is final, others may pass."""
        import pyarrow as pa

        for pause in (*_TRY_AGAIN_AFTER_S, None):
            try:
                return read()
            except Exception as error:
                if pause is None or isinstance(error, (pa.ArrowException, KeyError, FileNotFoundError)):
                    break
                time.sleep(pause)
        self._unreadable.append(name)
        return None

    def report(self, lost: int) -> None:
        """Log what could not be read, and how many ids have only a sidecar."""
        if self._unreadable:
            logger.warning(
                "%d unreadable files in %s, skipped; rows that are nowhere else will be done again: %s",
                len(self._unreadable),
                self._store.uri,
                ", ".join(sorted(self._unreadable)[:5]) + (", ..." if len(self._unreadable) > 5 else ""),
            )
        if lost:
            logger.warning(
                "%d ids have a sidecar in %s but no whole part: a run through ParquetSink does them again",
                lost,
                self._store.uri,
            )


def _side_by_side(work: Callable[[str], None], names: Iterable[str], workers: int) -> None:
    """Call `work` with each name, in that many threads; raises what one of them raised.

    Not an executor: that keeps an object of a kilobyte for each of what may be a hundred thousand names, and the
    interpreter waits for all of it at its end, also after a Ctrl-C.
    """
    left = list(reversed(list(names)))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures:
                try:
                    name = left.pop()
                except IndexError:
                    return
                work(name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(workers, len(left)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:
        failures.append(error)
        raise
    if failures:
        raise failures[0]
