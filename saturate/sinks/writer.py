"""The writer process: the only one that makes files in an output directory other than the journal.

The caller puts its rows into the journal itself (handover.py). This process is told of each segment that is opened, and
gets its descriptor, and when it is sealed; then it turns it into a part and its sidecar, in order, and deletes it. Two
threads: one hears the caller, the other lands, so that a slow store never delays an answer.

Invariants:
* nothing leaves the journal that is not in a durable part;
* a part is durable before its sidecar is begun;
* when the caller's process is gone the writer lands what it has and ends; if that fails, the journal stays.

From the caller come frames, each a pickled tuple `(number, what, ...)`:
    "opened", path     not answered; comes with the descriptor of a new segment
    "sealed", size     not answered; no more rows will come into it
    "flush"            answered when everything sealed so far is in durable parts
    "recover"          answered when the journals of dead programs have landed
    "put", name, data  answered when that file is durable
    "jot", name, data  not answered; tried once, and a failure is only logged
    "close"            answered like flush, and then the process ends
To the caller go frames `(what, value, rows demoted in all, log lines)`:
    "landed", size                  so many bytes of segments have landed
    "due", path                     this segment has been open for long enough
    "answer", (number, refusal)     refusal: None, or why it could not be done
    "blocked", (seconds, reason)    something fails and is tried again
    "failed", reason                the deadline for that has passed; the process ends and the journal stays
A demoted row is one that landed as an error row because it could not be stored as it came.
"""

from __future__ import annotations

import collections
import logging
import math
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

from saturate.sinks import journal, layout
from saturate.sinks.framing import Frames, frame
from saturate.sinks.store import Store, journal_directory, open_store

if TYPE_CHECKING:
    from saturate.sinks.schema import Schema

_T = TypeVar("_T")

logger = logging.getLogger("saturate")

_RECEIVE_BYTES = 1 << 18
# The segments that one message may announce, and as many again.
_MAX_DESCRIPTORS = 2
_PARENT_CHECK_S = 1.0
_LOCK_CHECK_S = 0.02
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# The hearing thread should get the interpreter quickly while the landing one builds a part.
_SWITCH_INTERVAL_S = 0.0005


class Setup(TypedDict):
    """What a writer is told when it starts. Plain values, since they arrive before the package can be imported."""

    uri: str
    journal_root: str | None
    flush_rows: int
    flush_bytes: int
    flush_seconds: float
    give_up_after: float
    schema: bytes | None
    parent: int


class GivenUp(Exception):
    """An operation has failed for longer than the deadline, or failed when nobody was left to wait for it."""


@dataclass
class _Job:
    """Something for the landing thread; `done` is set, and `refusal` filled in if it failed."""

    run: Callable[[], None]
    done: threading.Event
    refusal: str | None = None


class Writer:
    """One connection's worth of writing: `run` does it all."""

    def __init__(self, link: socket.socket, setup: Setup, is_orphaned: Callable[[], bool]) -> None:
        self._link = link
        self._setup = setup
        self._is_orphaned = is_orphaned
        self._store: Store = open_store(setup["uri"])
        self._journal = journal_directory(self._store, setup["journal_root"])
        self._names = layout.PartNames()
        self._segment: journal.Segment | None = None
        self._due_at = math.inf
        self._descriptors: collections.deque[int] = collections.deque()
        self._schema: Schema | None = None
        self._jobs: collections.deque[_Job] = collections.deque()
        self._changed = threading.Condition()
        self._ending = False
        self._left_alone = threading.Event()
        self._failure: str | None = None
        self._demoted = 0
        self._sending = threading.Lock()
        self.log_lines: collections.deque[tuple[int, str]] = collections.deque()

    # --- The hearing thread ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to close or until the caller is gone; returns when all that can land has landed."""
        landing = threading.Thread(target=self._land_jobs, name="saturate-landing", daemon=True)
        landing.start()
        try:
            self._hear(self._submit(self._recover))
        finally:
            # What the caller had open when it went away.
            self._sealed()
            with self._changed:
                self._ending = True
                self._changed.notify_all()
            landing.join()
            if self._failure is None:
                journal.remove_if_empty(self._journal)

    def _hear(self, recovery: _Job) -> None:
        arrivals = select.poll()
        arrivals.register(self._link, select.POLLIN)
        frames = Frames()
        while self._failure is None:
            if not arrivals.poll(max(0.0, min(self._due_at - time.monotonic(), _PARENT_CHECK_S)) * 1000):
                if self._segment is not None and self._due_at <= time.monotonic():
                    self._due_at = math.inf
                    self._send("due", self._segment.path)
                if self._is_orphaned():
                    break
                continue
            try:
                received, descriptors, _, _ = socket.recv_fds(self._link, _RECEIVE_BYTES, _MAX_DESCRIPTORS)
                self._descriptors.extend(descriptors)
                arrived = frames.add(received)
            except (OSError, ValueError) as error:
                logger.warning("the connection to the caller broke: %s", error)
                break
            if not received:
                break
            for payload in arrived:
                number, what, *rest = pickle.loads(payload)
                self._obey(number, what, rest, recovery)
                if what == "close":
                    return
        self._left_alone.set()

    def _obey(self, number: int, what: str, rest: list[Any], recovery: _Job) -> None:
        if what == "opened":
            self._segment = journal.Segment.shared(rest[0], self._descriptors.popleft())
            self._due_at = time.monotonic() + self._setup["flush_seconds"]
            if self._schema is None:
                self._submit(self._import_arrow)
            return
        if what == "sealed":
            self._sealed(rest[0])
            return
        if what == "jot":
            self._submit(lambda: self._jot(*rest))
            return
        if what == "recover":
            job = recovery
        elif what == "put":
            job = self._submit(lambda: self._persist(lambda: self._store.put(*rest)))
        else:
            job = self._submit(lambda: None)
        job.done.wait()
        self._send("answer", (number, job.refusal))

    def _sealed(self, size: int = 0) -> None:
        """No more rows will come into the open segment: it is the landing thread's."""
        segment, self._segment = self._segment, None
        self._due_at = math.inf
        if segment is not None:
            self._submit(lambda: self._land_sealed(segment, size))

    def _submit(self, run: Callable[[], None]) -> _Job:
        job = _Job(run, threading.Event())
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    # --- The landing thread ---------------------------------------------------------------------------------------

    def _land_jobs(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._ending:
                    self._changed.wait()
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            try:
                if self._failure is not None:
                    raise GivenUp(self._failure)
                job.run()
            except Exception as error:
                if not isinstance(error, GivenUp):
                    logger.exception("the writer met an error that it does not know")
                job.refusal = str(error) if isinstance(error, GivenUp) else _reason(error)
                self._fail(job.refusal)
            job.done.set()

    def _recover(self) -> None:
        """Land the segments of dead writers; wait for writers whose caller is dead, since they are about to end."""
        self._persist(self._store.prepare)
        # Twice: a writer for whose end the first pass waited may have opened further segments meanwhile.
        for _ in range(2):
            for path in journal.segments(self._journal):
                segment = self._adopt(path)
                if segment is not None:
                    self._land_again(segment)
        # Later parts win and pin the types: what this run adds must sort last, also where the clock is behind.
        self._names.follow(filter(layout.is_part, self._persist(self._store.listing)))

    def _adopt(self, path: str) -> journal.Segment | None:
        """The segment if it has no writer, once it has none if its caller is gone; None if it is not ours to take."""
        began = said = time.monotonic()
        while True:
            segment = journal.Segment.adopt(path)
            if segment is not None:
                return segment
            owner, now = journal.owner_of(path), time.monotonic()
            if owner is None or not owner.is_gone() or now - began > self._setup["give_up_after"]:
                return None
            if now - said > _LONGEST_PAUSE_S:
                said = now
                self._send("blocked", (round(now - began), f"the writer of a run that was cut off still holds {path}"))
            if self._left_alone.wait(_LOCK_CHECK_S):
                return None

    def _land_again(self, segment: journal.Segment) -> None:
        """Land a segment whose writer may have been killed at any step of landing it, and delete it."""
        _, packed = journal.read(segment.path)
        if packed:
            logger.warning("recovering %d rows from the journal of a run that was cut off", len(packed))
            self._land_what_is_missing(segment.part, packed)
        segment.discard()

    def _land_what_is_missing(self, part: str, packed: list[bytes]) -> None:
        listed = self._persist(self._store.listing)
        if part not in listed:
            self._land(part, packed)
        elif layout.sidecar_name(part) not in self._persist(lambda: self._store.listing(layout.MANIFEST)):
            from saturate.sinks.part import read_index, sidecar_bytes

            index = self._persist(lambda: read_index(self._store, part))
            self._persist(lambda: self._store.put(layout.sidecar_of(part), sidecar_bytes(index, listed[part])))

    def _land_sealed(self, segment: journal.Segment, size: int) -> None:
        if not os.path.exists(segment.path):
            # The caller was interrupted while it opened it, and took it back.
            segment.close()
            return
        # It may have been opened before the output was listed.
        part = self._names.moved(segment.part)
        if part != segment.part:
            self._persist(lambda: segment.rename(part))
        _, packed = journal.read(segment.path)
        if packed:
            self._demoted += self._land(segment.part, packed)
        segment.discard()
        self._send("landed", size)

    def _land(self, part: str, packed: list[bytes]) -> int:
        """Make a durable part and then its sidecar of the rows; how many of them could not be stored as they are."""
        from saturate.sinks.part import encode, sidecar_bytes

        if self._schema is None:
            self._schema = self._find_schema()
        encoded = encode(packed, self._schema)
        self._persist(lambda: self._store.put(part, encoded.data))
        sidecar = sidecar_bytes(encoded.index, encoded.data.size)
        self._persist(lambda: self._store.put(layout.sidecar_of(part), sidecar))
        return encoded.demoted

    @staticmethod
    def _import_arrow() -> None:
        """While the first rows come in, so that a short run does not wait for it at its end."""
        from saturate.sinks import part  # noqa: F401

    def _find_schema(self) -> Schema:
        from saturate.sinks import part

        declared = self._setup["schema"]
        if declared is not None:
            return part.declared(declared)
        return part.pinned_by(self._store, self._persist(self._store.listing))

    def _jot(self, name: str, data: bytes) -> None:
        try:
            self._store.put(name, data)
        except Exception as error:
            logger.warning("cannot write %s: %s", name, _reason(error))

    # --- Both threads ---------------------------------------------------------------------------------------------

    def _persist(self, operation: Callable[[], _T]) -> _T:
        """Try until it works, with growing pauses, telling the caller what is wrong. GivenUp after the deadline.

        A local operation fails for reasons outside the program with an OSError; what a remote store may raise is its
        own business.
        """
        passing: type[Exception] = OSError if self._store.local else Exception
        began = time.monotonic()
        pause = _FIRST_PAUSE_S
        while True:
            try:
                result = operation()
            except GivenUp:
                raise
            except passing as error:
                waited = time.monotonic() - began
                if self._left_alone.is_set() or self._is_orphaned():
                    self._left_alone.set()
                    raise GivenUp(_reason(error))
                if waited >= self._setup["give_up_after"]:
                    raise GivenUp(f"{_reason(error)} (for {waited:.0f} s)")
                if waited > 0.5:
                    self._send("blocked", (round(waited), _reason(error)))
                self._left_alone.wait(min(pause, max(0.01, self._setup["give_up_after"] - waited)))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                return result

    def _fail(self, reason: str) -> None:
        """Stop for good. The journal keeps every row that has not landed."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = reason
            self._changed.notify_all()
        self._send("failed", reason)

    def _send(self, what: str, value: object) -> None:
        with self._sending:
            lines = [self.log_lines.popleft() for _ in range(len(self.log_lines))]
            message = (what, value, self._demoted, lines)
            try:
                self._link.sendall(frame(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)))
            except OSError:
                # The caller is gone. What it has sent before is still to be received, so this is not the end.
                self.log_lines.extendleft(reversed(lines))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _LogLines(logging.Handler):
    """Keeps log lines for the next message, since the caller's process is where they should appear."""

    def __init__(self, lines: collections.deque[tuple[int, str]]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, self.format(record)))


def serve(link: socket.socket, setup: Setup) -> None:
    """Write for a caller in this same process, until it hangs up (stores that exist only in one process)."""
    with link:
        Writer(link, setup, _hang_up_of(link)).run()


def main(link: socket.socket, setup: Setup) -> NoReturn:
    """The writer process. Ctrl-C and a SIGTERM to the process group are for the caller to act on, not for this."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    hung_up = _hang_up_of(link)
    # A process forked from the caller may hold the other end open after its death, so the parent is looked at too.
    writer = Writer(link, setup, lambda: os.getppid() != setup["parent"] or hung_up())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_LogLines(writer.log_lines))
    try:
        writer.run()
    finally:
        for _, line in writer.log_lines:
            print(f"[saturate writer] {line}", file=sys.stderr)
        sys.stderr.flush()
    # Everything is durable, and somebody waits: an interpreter with Arrow in it takes a while to tidy up.
    os._exit(0)


def _hang_up_of(link: socket.socket) -> Callable[[], bool]:
    """Whether the other end has been closed, without reading what it sent before."""
    hang_up = select.poll()
    hang_up.register(link, 0)
    return lambda: any(event & (select.POLLHUP | select.POLLERR) for _, event in hang_up.poll(0))
