"""What every edge does, whatever it speaks: accept, a thread per connection, wait for clients, drain.

A connection's thread waits for its socket, never in a write: what the socket does not take now stays with the stream,
which may lose its block meanwhile. So a client that stalls costs its thread and nothing else. Until a client has said
who it is the server holds no more for it than what it reads its request into.
"""

import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from shuflr.server.catalog import Catalog
from shuflr.server.live import Live, LiveStream
from shuflr.server.memory import Memory
from shuflr.server.sockets import peer_name, prepare

log = logging.getLogger("shuflr")

_LINGER = 1.0  # seconds for a refused client to read why
_TURNED_AWAY = 64  # connections beyond the cap that are told so at once; what comes beyond them is closed


class Limits(NamedTuple):
    """Times in seconds. handshake: until the request must be there. heartbeat: of silence until one is sent. stall:
    that a client may take nothing (None: for ever; a paused one costs its thread). connections: at once."""

    handshake: float = 10.0
    heartbeat: float = 15.0
    stall: Optional[float] = None
    connections: int = 10_000


DEFAULT_LIMITS = Limits()

# None for a client that may come in, else the reason why not.
Authenticate = Callable[[bytes], Optional[str]]


def anybody(token: bytes) -> Optional[str]:
    """Lets every client in."""
    return None


class Edge:
    """Serves one protocol on any number of listening sockets. `tls` may be replaced: it holds for new connections."""

    name = "shuflr"

    def __init__(
        self,
        catalog: Catalog,
        memory: Memory,
        live: Optional[Live] = None,
        authenticate: Authenticate = anybody,
        limits: Limits = DEFAULT_LIMITS,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self.catalog = catalog
        self.memory = memory
        self.live = live or Live()
        self.authenticate = authenticate
        self.limits = limits
        self.tls = tls
        self.draining = threading.Event()
        self._wake, self._waker = os.pipe()  # readable once the server drains: ends every wait
        self._lock = threading.Lock()
        self._connections: dict[Connection, None] = {}
        self._quiet = threading.Condition(self._lock)
        self._refused = 0
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._pulse: Optional[threading.Thread] = None

    def connection(self, sock: socket.socket, peer: str, full: bool) -> "Connection":
        """What speaks with one client. full: only to tell it that there are too many."""
        raise NotImplementedError

    def serve(self, listener: socket.socket) -> None:
        """Accepts from a listening socket, on a thread of its own, until the server drains."""
        listener.setblocking(False)
        thread = threading.Thread(target=self._accept, args=(listener,), name=f"{self.name}-accept", daemon=True)
        with self._lock:
            self._listeners.append(listener)
            self._threads.append(thread)
            if self._pulse is None:
                self._pulse = threading.Thread(target=self._beat, name=f"{self.name}-pulse", daemon=True)
                self._pulse.start()
        thread.start()

    @property
    def wake(self) -> int:
        """A descriptor that becomes readable when the server drains."""
        return self._wake

    def _accept(self, listener: socket.socket) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self.draining.is_set():
            poll.poll()
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if self.draining.is_set():
                    return
                # Out of descriptors or memory: the clients that are served will make room.
                log.warning("cannot accept a connection: %s", error)
                self.draining.wait(0.1)
                continue
            self.admit(sock, address)

    def admit(self, sock: socket.socket, address: Any) -> None:
        """Serves an accepted connection on a thread of its own."""
        with self._lock:
            full = len(self._connections) - self._refused >= self.limits.connections
            if full and self._refused >= _TURNED_AWAY:
                sock.close()
                return
            connection = self.connection(sock, peer_name(address), full)
            self._connections[connection] = None
            self._refused += full
        try:
            threading.Thread(target=connection.run, name=self.name, daemon=True).start()
        except RuntimeError as error:  # no thread to be had
            log.warning("cannot serve %s: %s", connection.peer, error)
            sock.close()
            self.gone(connection)

    def gone(self, connection: "Connection") -> None:
        """A connection is closed."""
        with self._quiet:
            self._connections.pop(connection, None)
            self._refused -= connection.full
            self._quiet.notify_all()

    def _beat(self) -> None:
        """Sends heartbeats for streams that are busy making what comes next, and gives unused memory back."""
        while not self.draining.wait(min(self.limits.heartbeat / 2, 5.0)):
            with self._lock:
                connections = list(self._connections)
            for connection in connections:
                connection.beat()
            self.memory.trim()

    def drain(self, timeout: float) -> bool:
        """Accepts no more, lets every stream finish the message it is in, tells its client that it may resume, and
        waits for all to end; after `timeout` seconds cuts the rest. Whether none had to be cut."""
        self.draining.set()
        os.write(self._waker, b"!")
        with self._lock:
            listeners, threads = self._listeners, self._threads
            self._listeners, self._threads = [], []
        for thread in threads:
            thread.join()
        for listener in listeners:
            listener.close()
        with self._quiet:
            ended = self._quiet.wait_for(lambda: not self._connections, timeout)
            for connection in self._connections:
                connection.cut()
            self._quiet.wait_for(lambda: not self._connections, timeout=5.0)
        if self._pulse is not None:
            self._pulse.join()
        return ended


class Connection:
    """One client, from its first byte to its last, on a thread of its own."""

    def __init__(self, edge: Edge, sock: socket.socket, peer: str, full: bool) -> None:
        self.peer = peer
        self.full = full
        self._edge = edge
        self._sock: Any = sock
        self._listening = True  # the client may still say something

    def run(self) -> None:
        try:
            self._sock.setblocking(False)
            prepare(self._sock)
            self._converse(time.monotonic() + self._edge.limits.handshake)
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            log.debug("%s: %s", self.peer, error)
        except Exception:
            log.exception("%s: internal error", self.peer)
        finally:
            self._sock.close()
            self._edge.gone(self)

    def cut(self) -> None:
        """Ends the connection whatever it is doing."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def beat(self) -> None:
        """Called now and then by another thread, for a sign of life where the protocol has one."""

    def _converse(self, deadline: float) -> None:
        """Speaks with the client until the connection may be closed; its request must be there at the deadline."""
        raise NotImplementedError

    def _hear(self) -> None:
        """Takes what the client says while a stream runs."""
        raise NotImplementedError

    def _start_tls(self, deadline: float) -> None:
        """The handshake, where there is TLS. Sockets in the file system have none: their mode guards them."""
        context = self._edge.tls
        if context is None or self._sock.family == socket.AF_UNIX:
            return
        self._sock = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, deadline)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, deadline)

    def _wait(self, events: int, deadline: Optional[float] = None) -> int:
        """Waits for the socket; 0 when the server began to drain first. Raises TimeoutError at the deadline."""
        poll = select.poll()
        poll.register(self._sock, events)
        if not self._edge.draining.is_set():
            poll.register(self._edge.wake, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        found = dict(poll.poll(left))
        if not found:
            raise TimeoutError("the client took too long")
        return found.get(self._sock.fileno(), 0)

    def _write(self, view: "memoryview | bytes") -> int:
        """As many of the bytes as the socket takes now."""
        try:
            return int(self._sock.send(view))
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + self._edge.limits.handshake
        while view:
            view = view[self._write(view) :]
            if view:
                self._wait(select.POLLOUT, deadline)

    def _wait_for_client(self, live: LiveStream) -> None:
        """Until the socket takes bytes again, and then for a turn, which the caller has afterwards whatever happens.
        What the client says meanwhile is heard."""
        began = time.monotonic()
        turns, stall, fd = live.stream.turns, self._edge.limits.stall, self._sock.fileno()
        with live.waiting_for_client():
            while True:
                wake = -1 if self._edge.draining.is_set() else self._edge.wake
                left = None if stall is None else began + stall - time.monotonic()
                found = turns.poll(fd, select.POLLOUT | (select.POLLIN if self._listening else 0), wake, left)
                if not found:
                    if stall is not None and time.monotonic() - began >= stall:
                        turns.enter()
                        raise TimeoutError("the client took nothing for too long")
                    if self._edge.draining.is_set() and live.stream.between:
                        turns.enter()
                        return
                    continue
                if found & ~select.POLLOUT and self._listening:
                    self._hear()
                if found & ~select.POLLIN:
                    return
                turns.leave()

    def _reset_at_close(self) -> None:
        """Has the connection end as one that broke, where the protocol has no other way to say so."""
        if self._sock.family != socket.AF_UNIX:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _farewell(self) -> None:
        """Ends the client's reading, and takes what it still says for a moment: closing on it would reset the
        connection and lose what it has not read yet."""
        if isinstance(self._sock, ssl.SSLSocket):
            with suppress(OSError):
                self._sock.unwrap()
            return
        deadline, scratch = time.monotonic() + _LINGER, bytearray(4096)
        try:
            self._sock.shutdown(socket.SHUT_WR)
            while self._listening and self._wait(select.POLLIN, deadline):
                try:
                    self._listening = self._sock.recv_into(scratch) > 0
                except BlockingIOError:
                    continue
        except OSError:
            pass  # gone already, or for too long
