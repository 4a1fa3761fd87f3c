"""The life of a server: listen, say where, serve in one process or several, reload, drain, end.

Signals are only ever waited for, by the main thread, and never interrupt anything: SIGTERM and SIGINT drain, SIGHUP
reloads, a second SIGTERM or SIGINT ends at once. Workers are forked from a process that has one thread and never starts
another; they share its listening sockets, so a port belongs to the server and not to a worker, and one that dies is
replaced without a connection refused.
"""

import logging
import os
import resource
import select
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Optional

from shuflr.errors import InputError, ShuflrError
from shuflr.server.auth import Tokens
from shuflr.server.binding import Address, bound, listen, listen_unix
from shuflr.server.catalog import Catalog, parse_spec
from shuflr.server.edge import Edge, Limits
from shuflr.server.live import Live
from shuflr.server.memory import Memory
from shuflr.server.tls import Certificates
from shuflr.server.wire_edge import WireEdge

if TYPE_CHECKING:
    from shuflr.server.page import Offer

log = logging.getLogger("shuflr")

_END = {signal.SIGTERM, signal.SIGINT}
_CUTTING = 6.0  # seconds beyond the drain's own in which a worker has to end
_OTHER_FILES = 1024  # datasets, sidecars, pipes
_QUICK_DEATH = 1.0  # seconds; a worker that lives no longer is replaced no sooner than after as many


class Settings(NamedTuple):
    """What a server is told. Times in seconds, memory in bytes (None: a quarter of the machine's), for all workers
    together. dataset_list: a file of ID=PATH lines, read again at each reload."""

    datasets: "tuple[str, ...]"
    dataset_list: Optional[str] = None
    http: Optional[Address] = None
    wire: Optional[Address] = None
    unix: Optional[str] = None
    workers: int = 1
    memory: Optional[int] = None
    drain_timeout: float = 30.0
    limits: Limits = Limits()
    auth: str = "none"
    tokens: Optional[str] = None
    certificates: Optional[Certificates] = None

    def specs(self) -> "list[tuple[str, str]]":
        """The datasets as (id, path), as the list has them now. Raises InputError, OSError."""
        lines: list[str] = []
        if self.dataset_list is not None:
            with open(self.dataset_list, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        listed = [line for line in lines if line and not line.startswith("#")]
        specs = [parse_spec(text) for text in (*self.datasets, *listed)]
        if not specs:
            raise InputError("nothing to serve: give --dataset ID=PATH, or --datasets FILE with such lines")
        return specs


class Listeners(NamedTuple):
    """The sockets of a server."""

    http: Optional[socket.socket] = None
    wire: Optional[socket.socket] = None
    unix: Optional[socket.socket] = None

    @classmethod
    def open(cls, settings: Settings) -> "Listeners":
        return cls(
            listen(settings.http) if settings.http else None,
            listen(settings.wire) if settings.wire else None,
            listen_unix(settings.unix) if settings.unix else None,
        )

    def close(self, settings: Settings) -> None:
        for listener in self:
            if listener is not None:
                listener.close()
        if settings.unix is not None and self.unix is not None:
            try:
                os.unlink(settings.unix)
            except FileNotFoundError:
                pass


class Shared:
    """What is read from files, by the first process for all: the datasets, the tokens, the certificates."""

    def __init__(self, settings: Settings) -> None:
        """Raises InputError and OSError for what cannot be used."""
        self._settings = settings
        self.tokens = Tokens(settings.tokens) if settings.auth == "bearer" and settings.tokens else None
        self.tls = settings.certificates.context() if settings.certificates else None
        self.catalog = Catalog(settings.specs(), count=False)

    def reload(self) -> None:
        """Reads all of it again. What cannot be used is reported, and stays as it was."""
        for what, again in (("tokens", self._tokens), ("certificates", self._tls), ("datasets", self._datasets)):
            try:
                again()
            except (ShuflrError, OSError, UnicodeDecodeError) as error:
                log.warning("the old %s stay: %s", what, error)

    def _tokens(self) -> None:
        if self.tokens is not None:
            self.tokens.reload()

    def _tls(self) -> None:
        if self._settings.certificates is not None:
            self.tls = self._settings.certificates.context()

    def _datasets(self) -> None:
        self.catalog.reload(self._settings.specs())


class Server:
    """One process that serves."""

    def __init__(self, settings: Settings, shared: Shared, listeners: Listeners, folder: Optional[str] = None) -> None:
        """folder: where the processes of a server tell each other how they are."""
        self._settings = settings
        self._shared = shared
        self._edges: list[Edge] = []
        workers = max(settings.workers, 1)
        limits = settings.limits._replace(connections=-(-settings.limits.connections // workers))
        memory = Memory(Memory().limit // workers if settings.memory is None else settings.memory // workers)
        live, catalog, tokens = Live(), shared.catalog, shared.tokens
        catalog.start_counting()
        wire = WireEdge(catalog, memory, live, limits=limits, tls=shared.tls)
        if tokens is not None:
            wire.authenticate = tokens.of_hello
        if listeners.wire is not None or listeners.unix is not None:
            self._edges.append(wire)
        if listeners.http is not None or listeners.unix is not None:
            from shuflr.server.http_edge import HttpEdge
            from shuflr.server.status import Status

            http = HttpEdge(
                catalog, memory, live, limits=limits, tls=shared.tls, status=Status(live, catalog, folder),
                offers=_offers(listeners, settings, shared.tls),
            )  # fmt: skip
            if tokens is not None:
                http.authenticate = tokens.of_header
            self._edges.append(http)
            if listeners.http is not None:
                http.serve(listeners.http)
            if listeners.unix is not None:
                from shuflr.server.either import EitherEdge

                either = EitherEdge(http, wire)
                self._edges.insert(0, either)
                either.serve(listeners.unix)
        if listeners.wire is not None:
            wire.serve(listeners.wire)

    def reload(self) -> None:
        """Takes tokens, certificates and datasets anew; running streams keep what they have."""
        self._shared.reload()
        for edge in self._edges:
            edge.tls = self._shared.tls
        log.info("reloaded", extra={"fields": {"datasets": len(self._shared.catalog)}})

    def drain(self) -> None:
        """Ends all streams, within the time that was set."""
        end = time.monotonic() + self._settings.drain_timeout
        cut = []
        threads = [
            threading.Thread(target=lambda edge=edge: cut.append(not edge.drain(max(end - time.monotonic(), 0.0))))
            for edge in self._edges
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(cut):
            log.warning("some streams did not end within %g s and were cut", self._settings.drain_timeout)
        self._shared.catalog.close()


def _offers(listeners: Listeners, settings: Settings, tls: Optional[ssl.SSLContext]) -> "tuple[Offer, ...]":
    from shuflr.server.page import Offer

    found = []
    if listeners.wire is not None:
        found.append(Offer("shuflrs" if tls else "shuflr", str(bound(listeners.wire).port)))
    if listeners.http is not None:
        found.append(Offer("https" if tls else "http", str(bound(listeners.http).port)))
    if settings.unix is not None:
        found.append(Offer("shuflr+unix", os.path.abspath(settings.unix)))
    return tuple(found)


def _announce(settings: Settings, listeners: Listeners, shared: Shared) -> None:
    """The ready lines: where the server listens, with real ports."""
    fields = {"datasets": len(shared.catalog), "tls": shared.tls is not None, "auth": settings.auth}
    for name, listener in (("http", listeners.http), ("wire", listeners.wire)):
        if listener is not None:
            address = bound(listener)
            log.info("serve(%s) bound", name, extra={"fields": {"addr": str(address), **fields}})
            if address.public and shared.tls is None:
                log.warning("serve(%s) sends data and tokens in plain text beyond this machine", name)
    if listeners.unix is not None:
        log.info("serve(unix) bound", extra={"fields": {"addr": settings.unix, **fields, "tls": False}})


def _allow_open_files(connections: int) -> None:
    """Raises the number of open files that a process may have, as far as the system lets it: often 1,024 to begin
    with, and every connection is one."""
    want = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < want:
        most = want if hard == resource.RLIM_INFINITY else min(want, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (ValueError, OSError) as error:
            log.info("the system allows %d open files, and no more (%s)", soft, error)


def run(settings: Settings) -> int:
    """Serves until a signal ends it; returns the exit code. Raises InputError, OSError before it serves."""
    waited = {*_END, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM}
    for number in waited:  # one that is ignored might not be seen by who waits for it
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    if settings.http is not None or settings.unix is not None:
        import shuflr.server.http_edge  # noqa: F401  (says what is missing before anything is opened)
    _allow_open_files(settings.limits.connections)
    shared = Shared(settings)
    listeners = Listeners.open(settings)
    try:
        if settings.workers > 1:
            return _Supervisor(settings, shared, listeners).run()
        server = Server(settings, shared, listeners)
        _announce(settings, listeners, shared)
        while signal.sigwait({*_END, signal.SIGHUP}) == signal.SIGHUP:
            server.reload()
        log.info("draining")
        for number in _END:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
        server.drain()
        return 0
    finally:
        listeners.close(settings)


class _Worker(NamedTuple):
    """A process, since when it is there, and what becomes readable when it is ready (or dead)."""

    pid: int
    since: float
    ready: int


class _Supervisor:
    """The process that has workers and serves nothing itself."""

    def __init__(self, settings: Settings, shared: Shared, listeners: Listeners) -> None:
        self._settings = settings
        self._shared = shared
        self._listeners = listeners
        self._workers: dict[int, _Worker] = {}
        self._folder = tempfile.mkdtemp(prefix="shuflr-")
        self._alive, self._end_of_life = os.pipe()  # closes when this process ends, however it does

    def run(self) -> int:
        try:
            for _ in range(self._settings.workers):
                self._start()
            for worker in list(self._workers.values()):
                select.select([worker.ready], [], [])
            _announce(self._settings, self._listeners, self._shared)
            self._watch()
            return self._drain()
        finally:
            for pid in list(self._workers):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        ready, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            os.close(self._end_of_life)
            self._work(said)
        os.close(said)
        self._workers[pid] = _Worker(pid, time.monotonic(), ready)

    def _work(self, said: int) -> NoReturn:
        """The life of a worker, which never returns to what its parent was doing."""
        code = 70
        try:
            server = Server(self._settings, self._shared, self._listeners, self._folder)
            threading.Thread(target=self._end_with_parent, name="shuflr-parent", daemon=True).start()
            os.write(said, b"!")
            # SIGINT goes to all processes of a terminal; the parent passes it on as SIGTERM.
            while signal.sigwait({signal.SIGTERM, signal.SIGHUP}) == signal.SIGHUP:
                server.reload()
            server.drain()
            code = 0
        except BaseException:
            log.exception("a worker failed")
        finally:
            os._exit(code)

    def _end_with_parent(self) -> None:
        os.read(self._alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self) -> None:
        """Passes signals on and replaces workers that die, until it is time to end."""
        while True:
            number = signal.sigwait({*_END, signal.SIGHUP, signal.SIGCHLD})
            if number in _END:
                return
            if number == signal.SIGHUP:
                self._shared.reload()  # for workers that are started later
                self._tell(signal.SIGHUP)
            for worker, status in self._reap():
                log.error("worker %d %s; starting another", worker.pid, _death(status))
                if time.monotonic() - worker.since < _QUICK_DEATH:
                    time.sleep(_QUICK_DEATH)
                self._start()

    def _reap(self) -> "list[tuple[_Worker, int]]":
        """The workers that are dead, with their wait status."""
        dead = []
        for worker in list(self._workers.values()):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                del self._workers[pid]
                os.close(worker.ready)
                try:
                    os.unlink(os.path.join(self._folder, f"{pid}.sock"))
                except FileNotFoundError:
                    pass
                dead.append((worker, status))
        return dead

    def _tell(self, number: int) -> None:
        for pid in self._workers:
            os.kill(pid, number)

    def _drain(self) -> int:
        log.info("draining")
        self._tell(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._settings.drain_timeout + _CUTTING)
        while self._workers:
            number = signal.sigwait({*_END, signal.SIGCHLD, signal.SIGALRM})
            self._reap()
            if number != signal.SIGCHLD and self._workers:
                log.warning("%d workers did not end in time and are killed", len(self._workers))
                return 0
        return 0


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
