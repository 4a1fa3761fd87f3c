"""shuflr-wire/1 on sockets: a thread per connection, and nothing else per connection while its client stalls.

A thread waits for its socket, never in a write: what the socket does not take now stays with the stream, which may lose
its block meanwhile. Every write ends or continues a message; only between two messages may a heartbeat or a farewell
go out.
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

from shuflr.errors import DataError, Overloaded, OversizedRecord, ShuflrError
from shuflr.server.catalog import Catalog
from shuflr.server.live import Live, LiveStream
from shuflr.server.memory import Memory
from shuflr.server.sockets import prepare
from shuflr.server.streaming import Batches, BrokenStream, Buffers, DecodedStream, Plan, RawStream, Request, Stream
from shuflr.server.sums import Sums
from shuflr.wire import (
    AddCredit,
    Cancel,
    ClientHello,
    Decoder,
    Heartbeat,
    Message,
    OpenStream,
    Pong,
    ServerHello,
    StreamClosed,
    StreamError,
    StreamOpened,
    WireError,
    encode,
)
from shuflr.wire.messages import (
    CAN_RAW,
    CAN_ZSTD,
    INTERNAL,
    IO_ERROR,
    MALFORMED_RECORD,
    MODE_PLAIN,
    MODE_RAW,
    MODE_ZSTD,
    OVERSIZED_RECORD,
    RESOURCE_EXHAUSTED,
    SERVER_SHUTDOWN,
)

log = logging.getLogger("shuflr")

BATCH_RECORDS, MOST_BATCH_RECORDS = 64, 4096
_HELLO_LIMIT = 1 << 17  # the longest token and a request; memory grows with what arrives
_CONTROL_LIMIT = 1 << 12
_ZSTD_LEVEL = 1
_MORE = getattr(socket, "MSG_MORE", 0)  # what is sent is only the beginning of a message
_LINGER = 1.0  # seconds for a refused client to read why
_MODES = {MODE_RAW: "raw-frame", MODE_ZSTD: "zstd-batch", MODE_PLAIN: "plain-batch"}


class Limits(NamedTuple):
    """Times in seconds. handshake: until the request must be there. heartbeat: of silence until one is sent. stall:
    that a client may take nothing (None: for ever; a paused one costs its thread). connections: at once."""

    handshake: float = 10.0
    heartbeat: float = 15.0
    stall: Optional[float] = None
    connections: int = 10_000


_DEFAULT_LIMITS = Limits()

# None for a client that may come in, else the reason why not.
Authenticate = Callable[[bytes], Optional[str]]


def anybody(token: bytes) -> Optional[str]:
    """Lets every client in."""
    return None


class _Refused(Exception):
    """The handshake fails; the text is for the client."""


class WireEdge:
    """Serves shuflr-wire/1 on any number of listening sockets."""

    def __init__(
        self,
        catalog: Catalog,
        memory: Memory,
        live: Optional[Live] = None,
        authenticate: Authenticate = anybody,
        limits: Limits = _DEFAULT_LIMITS,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self.catalog = catalog
        self.memory = memory
        self.live = live or Live()
        self.authenticate = authenticate
        self.limits = limits
        self.tls = tls
        self.buffers = Buffers()
        self.sums = Sums(memory.limit // 8)
        self.draining = threading.Event()
        self._wake, self._waker = os.pipe()  # readable once the server drains: ends every wait
        self._lock = threading.Lock()
        self._connections: dict[_Connection, None] = {}
        self._quiet = threading.Condition(self._lock)
        self._refused = 0
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._pulse: Optional[threading.Thread] = None

    def serve(self, listener: socket.socket) -> None:
        """Accepts from a listening socket, on a thread of its own, until the server drains."""
        listener.setblocking(False)
        thread = threading.Thread(target=self._accept, args=(listener,), name="shuflr-wire-accept", daemon=True)
        with self._lock:
            self._listeners.append(listener)
            self._threads.append(thread)
            if self._pulse is None:
                self._pulse = threading.Thread(target=self._beat, name="shuflr-wire-pulse", daemon=True)
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
            self._start(sock, address)

    def _start(self, sock: socket.socket, address: Any) -> None:
        with self._lock:
            full = len(self._connections) - self._refused >= self.limits.connections
            if full and self._refused >= 64:
                sock.close()
                return
            connection = _Connection(self, sock, _name(address), full)
            self._connections[connection] = None
            self._refused += full
        try:
            threading.Thread(target=connection.run, name="shuflr-wire", daemon=True).start()
        except RuntimeError as error:  # no thread to be had
            log.warning("cannot serve %s: %s", connection.peer, error)
            sock.close()
            self.gone(connection)

    def gone(self, connection: "_Connection") -> None:
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


def _name(address: Any) -> str:
    if isinstance(address, tuple):
        return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
    return "unix"


class _Connection:
    """One client, from its hello to its stream's end, on a thread of its own."""

    def __init__(self, edge: WireEdge, sock: socket.socket, peer: str, full: bool) -> None:
        self.peer = peer
        self.full = full
        self._edge = edge
        self._sock: Any = sock
        self._listening = True  # the client may still say something
        self._decoder = Decoder(ClientHello, limit=_HELLO_LIMIT)
        self._sending = threading.Lock()
        self._last_sent = time.monotonic()
        self._beats = 0
        self._between = False  # no message is partly out
        self._cancelled = False
        self._complaint: Optional[str] = None  # about what the client said
        self._reset = False

    def run(self) -> None:
        try:
            self._converse()
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

    def _converse(self) -> None:
        deadline = time.monotonic() + self._edge.limits.handshake
        self._sock.setblocking(False)
        prepare(self._sock)
        if self._edge.tls is not None:
            self._start_tls(self._edge.tls, deadline)
        try:
            hello = self._hello(deadline)
            if hello is None:
                return
            stream, mode, opened = self._open(hello)
        except WireError as error:
            log.debug("%s: %s", self.peer, error)
            return
        except _Refused as refusal:
            self._refuse(str(refusal))
            return
        self._decoder.limit = _CONTROL_LIMIT
        try:
            with self._edge.live.showing(stream, _MODES[mode], self.peer) as live:
                self._send_all(encode(ServerHello(opened.encode(), mode=mode)))
                last = self._run_stream(stream, live)
            if last is not None:
                self._say(last)
        except (ShuflrError, MemoryError, OSError) as error:
            if isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
                raise
            log.warning("%s: %s: %s", self.peer, stream.plan.dataset.id, error)
            self._fail(stream, error)
        if not self._reset:
            self._farewell()

    def _start_tls(self, context: ssl.SSLContext, deadline: float) -> None:
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

    def _read(self) -> Optional[Message]:
        """The next message that has arrived, if any; clears `_listening` when the client has said its last."""
        message = self._decoder.next()
        while message is None and self._listening:
            room = self._decoder.room()
            try:
                got = self._sock.recv_into(room)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            self._listening = got > 0
            self._decoder.received(got)
            message = self._decoder.next()
        return message

    def _hello(self, deadline: float) -> Optional[ClientHello]:
        """The client's hello; None when it leaves before, or the server drains. Raises WireError, TimeoutError."""
        if self.full:
            raise _Refused(f"this server takes {self._edge.limits.connections} connections at once; try again later")
        while (message := self._read()) is None:
            if not self._listening or not self._wait(select.POLLIN, deadline):
                return None
        if not isinstance(message, ClientHello):
            raise _Refused(f"expected ClientHello, got {type(message).__name__}")
        return message

    def _open(self, hello: ClientHello) -> "tuple[Stream, int, StreamOpened]":
        """The stream that a client may have. Raises _Refused with the reason why not."""
        reason = self._edge.authenticate(hello.auth)
        if reason is not None:
            raise _Refused(f"auth rejected: {reason}")
        try:
            asked = OpenStream.parse(hello.open)
            plan = Plan(self._edge.catalog, _request(asked))
            mode = _mode(plan, asked, hello.capabilities)
            records = min(asked.max_batch_records or BATCH_RECORDS, MOST_BATCH_RECORDS)
            stream: Stream
            if (unsuited := plan.unsuited) is not None:
                stream = BrokenStream(plan, self._edge.memory, unsuited)
            elif mode == MODE_RAW:
                stream = RawStream(plan, self._edge.memory, self._edge.buffers, self._edge.sums)
            else:
                level = _ZSTD_LEVEL if mode == MODE_ZSTD else 0
                stream = DecodedStream(plan, self._edge.memory, Batches(records, level))
        except (ShuflrError, OSError) as error:
            raise _Refused(str(error)) from None
        return stream, mode, StreamOpened(
            plan.dataset.id,
            plan.dataset.label,
            asked.seed,
            asked.shuffle,
            records,
            resumed_at=stream.resumed_at,
            skip_in_frame=stream.skip_in_frame,
            total_records=plan.total_records,
        )  # fmt: skip

    def _refuse(self, detail: str) -> None:
        log.info("%s: refused: %s", self.peer, detail)
        self._send_all(encode(ServerHello.refusal(detail)))
        self._farewell()

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

    def _write(self, view: "memoryview | bytes") -> int:
        """As many of the bytes as the socket takes now."""
        with self._sending:
            try:
                taken = int(self._sock.send(view))
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return 0
            self._last_sent = time.monotonic()
            self._between = False
            return taken

    def _send_file(self, head: memoryview, fd: int, offset: int, count: int) -> int:
        """As many bytes of the head, and then of a file, as the socket takes now."""
        with self._sending:
            taken = 0
            try:
                if head:
                    taken = int(self._sock.send(head, _MORE))
                if taken == len(head) and count:
                    taken += os.sendfile(self._sock.fileno(), fd, offset, count)
            except BlockingIOError:
                pass
            if taken:
                self._last_sent = time.monotonic()
                self._between = False
            return taken

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        deadline = time.monotonic() + self._edge.limits.handshake
        while view:
            view = view[self._write(view) :]
            if view:
                self._wait(select.POLLOUT, deadline)

    def _run_stream(self, stream: Stream, live: LiveStream) -> "Optional[StreamClosed | StreamError]":
        """Sends the stream as the client takes it, until its end; returns what is to be said when it ends before: an
        error, the answer to a Cancel, a farewell."""
        all_taken = True

        def write(view: memoryview) -> int:
            nonlocal all_taken
            taken = self._write(view)
            all_taken = taken == len(view)
            return taken

        def send_file(head: memoryview, fd: int, offset: int, count: int) -> int:
            nonlocal all_taken
            taken = self._send_file(head, fd, offset, count)
            all_taken = taken == len(head) + count
            return taken

        direct = send_file if self._edge.tls is None and hasattr(os, "sendfile") else None
        with self._sending:
            self._between = True
        if direct is not None and isinstance(stream, RawStream):
            stream.turns = self._edge.memory.direct_turns
        turns = stream.turns
        turns.enter()
        try:
            while True:
                if not all_taken or not stream.in_hand:
                    turns.leave()
                    self._wait_for_client(live)
                if stream.between and (last := self._last_word(stream)) is not None:
                    return last
                all_taken = True
                more = stream.offer(write, direct)
                with self._sending:
                    self._between = stream.between
                if not more:
                    return None
        finally:
            turns.leave()

    def _wait_for_client(self, live: LiveStream) -> None:
        """Until the socket takes bytes again, and then for a turn, which the caller has afterwards whatever happens.
        What the client says meanwhile is heard."""
        began = time.monotonic()
        turns, stall, fd = live.stream.turns, self._edge.limits.stall, self._sock.fileno()
        try:
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
        finally:
            live.blocked_on_client += time.monotonic() - began

    def _hear(self) -> None:
        """Takes what the client says. Credit and pongs change nothing: the socket's window is what holds us back."""
        try:
            while (message := self._read()) is not None:
                if isinstance(message, Cancel):
                    self._cancelled = True
                elif not isinstance(message, (AddCredit, Pong, Heartbeat)):
                    raise WireError(f"a {type(message).__name__} makes no sense while a stream runs")
        except WireError as error:
            self._listening = False
            self._complaint = str(error)

    def _last_word(self, stream: Stream) -> "Optional[StreamClosed | StreamError]":
        """What ends the stream before its end, if anything does."""
        if self._complaint is not None:
            return StreamError(MALFORMED_RECORD, True, self._complaint)
        if self._cancelled:
            stream.settle()
            return StreamClosed(stream.records, stream.epochs)
        if self._edge.draining.is_set():
            return StreamError(SERVER_SHUTDOWN, True, "the server is shutting down; the stream can be resumed")
        return None

    def _say(self, message: "StreamClosed | StreamError") -> None:
        self._send_all(encode(message))

    def _fail(self, stream: Stream, error: Exception) -> None:
        """Tells the client why its stream breaks off. In the middle of a message only a reset tells it anything."""
        if stream.between:
            self._say(StreamError(_code(error), True, str(error)))
            return
        if self._sock.family != socket.AF_UNIX:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._reset = True

    def beat(self) -> None:
        """Sends a heartbeat when nothing was sent for long because nothing was ready. Called by another thread."""
        if time.monotonic() - self._last_sent < self._edge.limits.heartbeat:
            return
        if not self._sending.acquire(blocking=False):
            return
        try:
            if self._between:
                self._beats += 1
                data = encode(Heartbeat(self._beats))
                if self._sock.send(data) != len(data):
                    self.cut()
                self._last_sent = time.monotonic()
        except (OSError, ValueError):
            pass  # full, or closed: the connection's own thread finds out
        finally:
            self._sending.release()


def _code(error: Exception) -> int:
    """The protocol's number for what went wrong."""
    if isinstance(error, OversizedRecord):
        return OVERSIZED_RECORD
    if isinstance(error, (DataError, OSError)):
        return IO_ERROR
    return RESOURCE_EXHAUSTED if isinstance(error, (Overloaded, MemoryError)) else INTERNAL


def _request(asked: OpenStream) -> Request:
    """A world size without a rank divides nothing, as the public program has it."""
    return Request(
        asked.dataset_id,
        asked.seed,
        asked.shuffle,
        1 if asked.epochs is None else asked.epochs,
        asked.sample,
        asked.rank,
        asked.world_size,
        asked.skip,
        asked.fingerprint,
    )


def _mode(plan: Plan, asked: OpenStream, capabilities: int) -> int:
    """How the records travel: as stored frames where client and order allow it and nothing else is asked for."""
    if asked.mode == "zstd-batch" and capabilities & CAN_ZSTD:
        return MODE_ZSTD
    if capabilities & CAN_RAW and plan.can_be_raw and asked.mode in (None, "raw-frame"):
        return MODE_RAW
    return MODE_PLAIN
