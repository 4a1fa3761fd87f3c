"""The caller's side of the writer: journal each row, tell the writer of it, hear what became of it.

A row is in the journal before `append` returns, put there by the thread that appends: one system call, and from then on
the row survives the death of this process and of the writer, whether or not that has read it, or has even started. The
writer shares the open segment (its descriptor crosses the socket), so the segment stays locked until the last of the
two is gone, and the writer alone makes parts of it.

Invariants:
* what is journaled and not yet in a part is bounded, so a sink that cannot keep up is felt by whoever appends. Every
  wait here is interrupted by Ctrl-C, and leaves the link as it was;
* a writer is a fresh interpreter that imports the sinks and nothing of the user's program.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from saturate.sinks.framing import Frames, frame
from saturate.sinks.journal import Owner, Segment
from saturate.sinks.layout import PartNames
from saturate.sinks.packing import NOT_STORABLE, Packer, Record, is_error
from saturate.sinks.store import PROCESS_LOCAL_STORES
from saturate.sinks.writer import Setup, serve

logger = logging.getLogger("saturate")

# Sealed segments that may wait to be landed. Rows in them are safe, so the bound is there for the disk, and so that
# a store slower than the model is felt as a slower admission rather than as an hour of flushing at the end.
_MAX_WAITING_SEGMENTS = 64
_MAX_WAITING_BYTES = 1 << 30
# Between the end of its connection and the end of its process.
_LAST_WORDS_S = 5.0
_POST_WAIT_S = 0.1
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_KEPT_FROM_WRITER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Runs in the writer before anything of this package. The current directory is taken off the path first, since a file
# there may be called like a module of the standard library. `saturate` is made an empty package: the writer needs
# `saturate.sinks`, and none of what the package's own `__init__` imports.
_BOOT = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import pickle, socket, types
link = socket.socket(fileno=int(sys.argv[1]))
with link.makefile("rb", buffering=0) as head:
    size = head.read(4)
    setup = bytearray()
    while len(size) == 4 and len(setup) < int.from_bytes(size, "little"):
        more = head.read(int.from_bytes(size, "little") - len(setup))
        if not more:
            break
        setup += more
if not setup:
    sys.exit(0)
path, package, implementation, setup = pickle.loads(setup)
sys.path[:] = path
sys.modules["saturate"] = shell = types.ModuleType("saturate")
shell.__path__ = [package]
if implementation is not None:
    import fsspec
    fsspec.register_implementation(*implementation, clobber=True)
from saturate.sinks.writer import main
main(link, setup)
"""


class SinkError(RuntimeError):
    """The sink cannot go on. Every row that it took is in a part or in the journal; the next run lands the latter."""


class _Packers(threading.local):
    """One packer for each thread that appends."""

    def __init__(self) -> None:
        self.pack = Packer().pack


class Link:
    """A started writer, and the segment that is being filled for it. Its methods may be called from any thread."""

    def __init__(
        self, setup: Setup, journal_directory: str, protocol: str, implementation: tuple[str, str] | None
    ) -> None:
        self._setup = setup
        self._journal = journal_directory
        self._owner = Owner.of(setup["parent"])
        self._names = PartNames()
        self._packers = _Packers()
        self._lock = threading.Lock()
        # Under the same lock: notified of everything that the writer says.
        self._changed = threading.Condition(self._lock)
        self._segment: Segment | None = None
        self._unsent = bytearray()
        self._waiting_segments = 0
        self._waiting_bytes = 0
        self._demoted = 0
        self._unpackable = 0
        self._requests = 0
        self._answers: dict[int, str | None] = {}
        self._failure: str | None = None
        self._has_died = False
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        if protocol in PROCESS_LOCAL_STORES:
            self._socket, self._thread = _start_thread(setup)
        else:
            self._socket, self._process = _start_process(setup, implementation)
        self._movable = select.poll()
        self._movable.register(self._socket, select.POLLOUT)
        self._listener = threading.Thread(target=self._listen, name="saturate-sink", daemon=True)
        self._listener.start()

    @property
    def rows_demoted(self) -> int:
        """Rows that became error rows because they could not be stored; complete after a flush."""
        return self._demoted + self._unpackable

    @property
    def has_died(self) -> bool:
        """Whether the writer was killed or crashed, so that another may do better; not if it has given up."""
        return self._has_died

    # --- Rows ---------------------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Journal a record, or an error record if it cannot be packed; wait first while too much waits to be landed.

        Raises SinkError if the writer has died or given up, or if the journal's disk does not take the record for too
        long. Except in that last case the record is in the journal all the same.
        """
        try:
            packed = self._packers.pack(record)
        except Exception as error:
            packed = self._pack_error(record, error)
        with self._lock:
            try:
                self._write(packed)
            except OSError:
                self._persist(lambda: self._write(packed))
            if self._failure is not None:
                raise SinkError(self._failure)

    def _pack_error(self, record: Record, error: Exception) -> bytes:
        known = record.get("error")
        if not is_error(known):
            self._unpackable += 1
            known = f"{NOT_STORABLE}{type(error).__name__}: {error}"
        return self._packers.pack({"id": str(record["id"]), "error": str(known)})

    def _write(self, packed: bytes) -> None:
        """Into the open segment. Raises OSError, and then the row is not in it."""
        segment = self._segment or self._open()
        segment.append([packed])
        if segment.rows >= self._setup["flush_rows"] or segment.size >= self._setup["flush_bytes"]:
            self._seal()

    def _open(self) -> Segment:
        """Another segment, once there is room for one. A writer that has failed is not told of it."""
        while self._failure is None and (
            self._waiting_segments >= _MAX_WAITING_SEGMENTS or self._waiting_bytes >= _MAX_WAITING_BYTES
        ):
            self._changed.wait()
            if self._segment is not None:
                return self._segment
        if self._closed:
            raise SinkError(str(self._failure))
        segment = Segment.create(self._journal, self._names.next(), self._owner)
        try:
            if self._failure is None:
                self._push((0, "opened", segment.path), segment.descriptor)
        except SinkError:
            # It takes rows all the same: the next writer lands them.
            pass
        except BaseException:
            segment.discard()
            raise
        self._segment = segment
        return segment

    def _seal(self) -> None:
        """Leave the open segment to the writer; the next row opens another."""
        segment = self._segment
        if segment is None or self._failure is not None:
            return
        self._segment = None
        self._waiting_segments += 1
        self._waiting_bytes += segment.size
        segment.close()
        try:
            self._push((0, "sealed", segment.size))
        except SinkError:
            # Nobody holds the segment any more, so the next writer finds it.
            pass

    def _persist(self, operation: Callable[[], None]) -> None:
        """Try until it works, with growing pauses in which other threads may go on. SinkError after the deadline."""
        began = time.monotonic()
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return operation()
            except OSError as error:
                waited = time.monotonic() - began
                reason = f"{type(error).__name__}: {error}"
                if waited >= self._setup["give_up_after"]:
                    self._fail(f"the sink has given up: {reason} (for {waited:.0f} s)")
                if self._failure is not None:
                    raise SinkError(self._failure) from error
                if waited > 0.5:
                    logger.warning("sink blocked for %d s: %s; retrying", round(waited), reason)
                self._changed.wait(min(pause, max(0.01, self._setup["give_up_after"] - waited)))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    # --- Requests -----------------------------------------------------------------------------------------------------

    def request(self, *message: object, timeout: float | None = None) -> bool:
        """Ask for something after the rows appended so far and wait for the answer; False if that takes too long.

        Raises SinkError with the reason if it could not be done.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._refuse_if_failed()
            self._requests += 1
            number = self._requests
            if message[0] in ("flush", "close"):
                self._seal()
            self._push((number, *message))
            while number not in self._answers:
                self._refuse_if_failed()
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return False
                self._changed.wait(remaining)
            refusal = self._answers.pop(number)
            failure = self._failure
        if refusal is not None:
            raise SinkError(failure or refusal)
        return True

    def post(self, *message: object) -> bool:
        """Ask for something after the rows appended so far, without an answer.

        False, and nothing is asked, if another thread is waiting for the writer: what may be left out must not wait
        behind a store that is away.
        """
        if not self._lock.acquire(timeout=_POST_WAIT_S):
            return False
        try:
            self._refuse_if_failed()
            self._push((0, *message))
        finally:
            self._lock.release()
        return True

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise SinkError(self._failure)

    def _push(self, message: tuple[object, ...], descriptor: int | None = None) -> None:
        """Send a message. An interrupt leaves the rest of it unsent, and the next one is sent after that."""
        data = frame(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        if descriptor is None:
            self._unsent += data
        self._drain_unsent()
        while descriptor is not None:
            try:
                sent = socket.send_fds(self._socket, [data], [descriptor], socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._movable.poll()
            except OSError:
                self._await_the_end()
            else:
                descriptor = None
                self._unsent += data[sent:]
        self._drain_unsent()

    def _drain_unsent(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._movable.poll()
            except OSError:
                self._await_the_end()
            else:
                del self._unsent[:sent]

    def _await_the_end(self) -> None:
        """The connection has broken: let the listening thread hear the writer's last words, then raise SinkError."""
        deadline = time.monotonic() + 2 * _LAST_WORDS_S
        while self._failure is None and threading.current_thread() is not self._listener:
            if not self._changed.wait(deadline - time.monotonic()):
                self._fail("the connection to the writer broke")
        raise SinkError(str(self._failure))

    # --- The listening thread -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        heard = Frames()
        while True:
            try:
                data = self._socket.recv(1 << 16)
                messages = [pickle.loads(payload) for payload in heard.add(data)]
            except (OSError, ValueError):
                data, messages = b"", []
            for message in messages:
                with self._changed:
                    self._hear(*message)
                    self._changed.notify_all()
            if not data:
                break
        if not self._closed:
            self.join(_LAST_WORDS_S)
            status = None if self._process is None else self._process.returncode
            with self._changed:
                if self._failure is None:
                    self._has_died = True
                    self._fail(f"the writer process has ended unexpectedly (exit status {status})")
                self._changed.notify_all()
        self._socket.close()

    def _hear(self, what: str, value: Any, demoted: int, lines: list[tuple[int, str]]) -> None:
        self._demoted = demoted
        for level, line in lines:
            logger.log(level, "%s", line)
        if what == "answer":
            number, refusal = value
            self._answers[number] = refusal
        elif what == "landed":
            self._waiting_segments -= 1
            self._waiting_bytes -= value
        elif what == "due":
            if self._segment is not None and self._segment.path == value:
                self._seal()
        elif what == "blocked":
            logger.warning("sink blocked for %d s: %s; retrying", *value)
        elif what == "failed":
            self._fail(f"the sink has given up: {value}")

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = f"{reason}; what was taken is in the output or its journal, run the same command to go on"

    # --- The end ------------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End the connection, without waiting: the writer lands what it has been given and ends."""
        self._closed = True
        self._failure = self._failure or "the sink has been closed"
        try:
            # Not closed here: that would not wake the listening thread, which closes it when it ends.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        # The descriptor must not be closed, and its number given to another file, under somebody who appends.
        if self._lock.acquire(timeout=_POST_WAIT_S):
            segment, self._segment = self._segment, None
            self._changed.notify_all()
            self._lock.release()
            if segment is not None:
                segment.close()
        if self._process is not None:
            _ENDING.append(self._process)
            _reap()

    def join(self, timeout: float) -> None:
        """Wait until the writer has ended, or the time is over."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's: its connection, lest the writer think that it still
        lives, and its segment, lest the lock on that outlive it."""
        self._socket.close()
        if self._segment is not None:
            self._segment.close()
        if self._process is not None:
            self._process.returncode = 0


# Writers that were hung up on and have not ended yet.
_ENDING: list[subprocess.Popen[bytes]] = []


def _reap() -> None:
    _ENDING[:] = [process for process in _ENDING if process.poll() is None]


def _start_process(
    setup: Setup, implementation: tuple[str, str] | None
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A writer in a process of its own.

    Not by `multiprocessing`: that would run the user's main module again under spawn, copy a process with threads
    under fork, and is forbidden in a daemonic worker.
    """
    _reap()
    if not sys.executable:
        raise SinkError("the writer process needs a Python interpreter, and sys.executable does not name one")
    ours, theirs = socket.socketpair()
    with theirs:
        # The writer inherits this mask, so a Ctrl-C cannot hit it before it has learned to ignore it.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT_FROM_WRITER)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    told = pickle.dumps((sys.path, package, implementation, setup), pickle.HIGHEST_PROTOCOL)
    try:
        ours.sendall(len(told).to_bytes(4, "little") + told)
    except OSError:
        # It has ended already; the first row finds out, and says with which status.
        pass
    return ours, process


def _start_thread(setup: Setup) -> tuple[socket.socket, threading.Thread]:
    """A writer in this process, for a store that no other process could see."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs, setup), name="saturate-writer", daemon=True)
    thread.start()
    return ours, thread
