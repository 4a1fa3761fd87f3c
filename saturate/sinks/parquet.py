"""ParquetSink: rows in, a directory of parquet parts out, kept by a writer process.

This is the part of it that lives in the caller's process: plain configuration until something is to be written. It
holds no file and no thread of its own, and Arrow is not imported to append.

Invariants: an id that `existing_ids` returns has a durable record; a row that was appended is never lost by the death
of any process; of the output's own files this process writes none, only the journal.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from saturate.sinks import journal, layout
from saturate.sinks.handover import Link, SinkError
from saturate.sinks.packing import Record
from saturate.sinks.store import Location, implementation_of, journal_directory, open_store
from saturate.sinks.writer import Setup

if TYPE_CHECKING:
    import pyarrow as pa

    from saturate.rows.seen import IdSet

# Large enough that ten million rows make a thousand parts, small enough that a part is encoded in a second.
DEFAULT_FLUSH_ROWS = 10_000
DEFAULT_FLUSH_BYTES = 64 << 20
# Rows are safe in the journal meanwhile; this is how old what other readers see may be. On a remote store each flush
# costs two requests (two commits on the hub, which allows 128 an hour).
DEFAULT_FLUSH_S_LOCAL = 60.0
DEFAULT_FLUSH_S_REMOTE = 300.0
GIVE_UP_AFTER_S = 600.0
# An interrupted run waits so long for its last part; then its writer goes on alone, and the next run waits for that.
INTERRUPTED_S = 0.8
# For the process to end once everything has landed: it has only to exit.
_EXIT_S = 5.0

Shard = tuple[int, int]


class ParquetSink:
    """Lands records as `part-*.parquet` in a directory that any number of runs and shards share.

    Args:
        out_uri: the directory: a local path (str or pathlib.Path, any characters) or any fsspec URI.
        flush_every: rows per part, at most. None: 10,000.
        schema: a pyarrow schema that every part is to have (declared mode): `id` and `error` strings, every other
            column nullable. None: each column keeps the type it shows first.
        read_workers: threads that read the manifest when a run resumes, at most; of a mounted directory no more than
            there are cores, or four.
        flush_bytes: a part is also closed at this many bytes of packed rows. Default 64 MiB.
        flush_seconds: and when its first row is this old. None: 60 for a local directory, 300 for a remote one.
        journal_dir: where rows are kept until they are in a part; must be on a local disk. None:
            `_journal/` inside a local output, `~/.cache/saturate/journal/<hash of the URI>/` for a remote one.
        give_up_after: seconds for which a failing disk or store is tried again before `SinkError` is raised.

    Raises ValueError or TypeError for a schema or a number that cannot work, at the call.

    Creating a sink starts nothing and creates nothing. The writer process starts with `begin_run` or the first record;
    a sink that is pickled, or used in a forked child, starts a writer of its own there.
    """

    def __init__(
        self,
        out_uri: Location,
        flush_every: int | None = None,
        schema: pa.Schema | None = None,
        read_workers: int = 16,
        *,
        flush_bytes: int = DEFAULT_FLUSH_BYTES,
        flush_seconds: float | None = None,
        journal_dir: Location | None = None,
        give_up_after: float = GIVE_UP_AFTER_S,
    ) -> None:
        counts = {"flush_every": flush_every, "read_workers": read_workers, "flush_bytes": flush_bytes}
        for name, number in counts.items():
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        if flush_seconds is not None and not flush_seconds > 0:
            raise ValueError(f"flush_seconds must be more than 0, not {flush_seconds}")
        self._store = open_store(out_uri)
        self._implementation = implementation_of(self._store)
        self._read_workers = read_workers
        self._setup: Setup = {
            "uri": self._store.uri,
            "journal_root": None if journal_dir is None else os.path.abspath(os.fspath(journal_dir)),
            "flush_rows": flush_every or DEFAULT_FLUSH_ROWS,
            "flush_bytes": flush_bytes,
            "flush_seconds": flush_seconds or (DEFAULT_FLUSH_S_LOCAL if self._store.local else DEFAULT_FLUSH_S_REMOTE),
            "give_up_after": give_up_after,
            "schema": None if schema is None else _checked(schema),
            "parent": 0,
        }
        self.telemetry_every_ticks = 30 if self._store.local else 150
        self._start_empty()

    def _start_empty(self) -> None:
        """What belongs to this process and this moment, as opposed to the configuration."""
        self._link: Link | None = None
        self._starting = threading.Lock()
        self._demoted_before = 0
        self._telemetry_name: str | None = None
        _SINKS.add(self)

    # --- What a run calls -----------------------------------------------------------------------------------------

    def begin_run(self, shard: Shard) -> None:
        """A run begins: its telemetry goes to a file of its own, and the writer starts while the first rows are out."""
        self._telemetry_name = None
        self._writer()

    def existing_ids(self, retry_errors: bool = False) -> set[str]:
        """The ids with a durable record in the output; with `retry_errors`, only those with a success.

        Rows that a run cut off earlier left in a journal on this machine are landed first. Creates nothing if there
        is nothing.
        """
        from saturate.sinks.resume import durable_ids

        self._recover()
        return durable_ids(self._store, retry_errors, self._read_workers)

    def done_ids(self, retry_errors: bool = False) -> IdSet:
        """The same ids as a set that can only be asked whether an id is in it: at most 24 bytes for each.

        This is what a run skips by.
        """
        from saturate.sinks.resume import done_ids

        self._recover()
        return done_ids(self._store, retry_errors, self._read_workers)

    def _recover(self) -> None:
        directory = journal_directory(self._store, self._setup["journal_root"])
        if journal.segments(directory):
            self._writer().request("recover")
        elif self._link is None:
            # What a writer leaves that was killed between its last segment and the directory.
            journal.remove_if_empty(directory)

    def append(self, record: Record) -> None:
        """Take a record: `id`, `error` (None on success) and the columns. It is in the journal when this returns.

        Several threads may append at once. Waits while far too much is not in parts yet, or the journal's disk does not
        take it, and Ctrl-C interrupts that. A record that cannot be stored lands as an error row. Raises KeyError for a
        record without an id, SinkError if the writer has died or has given up.
        """
        link = self._link
        if link is None:
            link = self._writer()
        link.append(record)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every record appended so far is in a durable part with its sidecar.

        False if `timeout` seconds were not enough; the writer goes on. Raises SinkError.
        """
        return self._link is None or self._link.request("flush", timeout=timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Flush, and end the writer process. The sink may be used again; that starts another.

        After `timeout` seconds it hangs up and returns False: the writer, or the next run, lands what is left.
        Raises SinkError, and the writer has ended then too.
        """
        link = self._link
        if link is None:
            return True
        try:
            return self._close(link, timeout)
        except SinkError:
            if link.has_died:
                self._replace([])
                self.close()
            raise

    def _close(self, link: Link, timeout: float | None) -> bool:
        ending = False
        try:
            ending = landed = link.request("close", timeout=timeout)
        except SinkError:
            # It is on its way out and must have let go of its journal when another sink looks at that.
            ending = True
            raise
        finally:
            self._let_go(link)
            if ending:
                link.join(_EXIT_S)
        return landed

    def _let_go(self, link: Link) -> None:
        self._link = None
        self._demoted_before += link.rows_demoted
        link.hang_up()

    def rescue(self, records: Iterable[Record]) -> bool:
        """After `append` has raised because the writer died: land all that was appended, and these records too.

        Another writer does that; the sink may be used again. `close` does it as well. False, and nothing is done, if
        the writer has not died: one that has given up would fail again. Raises SinkError.
        """
        link = self._link
        if link is None or not link.has_died:
            return False
        self._let_go(link)
        self._replace(records)
        return True

    def _replace(self, records: Iterable[Record]) -> None:
        """Have another writer land the dead one's journal, then these records."""
        successor = self._writer()
        successor.request("recover")
        for record in records:
            successor.append(record)
        successor.request("flush")

    def __enter__(self) -> ParquetSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What was appended is in the journal: whoever interrupts does not wait for a slow store to take the parts.
        interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
        self.close(timeout=INTERRUPTED_S if interrupted else None)

    @property
    def rows_demoted(self) -> int:
        """Records of this sink that landed as error rows because they could not be stored. Final after `flush`."""
        return self._demoted_before + (0 if self._link is None else self._link.rows_demoted)

    def write_telemetry(self, shard: Shard, lines: Iterable[str]) -> None:
        """Replace the run's telemetry file by these lines, all of them so far.

        Does not wait for the store; a failure is logged. Left out while another thread waits for a writer that is
        behind: the next call writes the same lines and more.
        """
        if self._telemetry_name is None:
            self._telemetry_name = layout.telemetry(shard[0])
        self._writer().post("jot", self._telemetry_name, "\n".join(lines).encode())

    def write_stats(self, shard: Shard, stats: str | Mapping[str, Any]) -> None:
        """Store the run's statistics (`Stats.to_json()`, or a mapping), with the shard's rank and world.

        Returns when durable; raises SinkError.
        """
        rank, world = shard
        fields = json.loads(stats) if isinstance(stats, str) else stats
        text = json.dumps({**fields, "rank": rank, "world": world})
        self._writer().request("put", layout.stats(rank), text.encode())

    def write_marker(self, shard: Shard) -> None:
        """Say that this shard has finished a run: the last thing a run writes. Raises SinkError."""
        self._writer().request("put", layout.marker(shard[0]), b"done")
        self._telemetry_name = None

    # --- The writer -----------------------------------------------------------------------------------------------

    def _writer(self) -> Link:
        with self._starting:
            if self._link is None:
                self._link = Link(
                    {**self._setup, "parent": os.getpid()},
                    journal_directory(self._store, self._setup["journal_root"]),
                    self._store.protocol,
                    self._implementation,
                )
                # A sink that is dropped without `close` lands what it was given all the same.
                weakref.finalize(self, self._link.hang_up).atexit = False
            return self._link

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_store": self._store,
            "_implementation": self._implementation,
            "_read_workers": self._read_workers,
            "_setup": self._setup,
            "telemetry_every_ticks": self.telemetry_every_ticks,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_empty()

    def _forget_after_fork(self) -> None:
        if self._link is not None:
            self._link.forget()
        self._start_empty()


_SINKS: weakref.WeakSet[ParquetSink] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for sink in list(_SINKS):
        sink._forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)


def _checked(schema: pa.Schema) -> bytes:
    from saturate.sinks.schema import Declared

    Declared(schema)
    return bytes(schema.serialize())
