"""shuflr-wire/1 on sockets. Every write ends or continues a message; only between two messages may a heartbeat or a
farewell go out.
"""

import logging
import os
import select
import socket
import ssl
import threading
import time
from typing import Optional

from shuflr.errors import DataError, Overloaded, OversizedRecord, ShuflrError
from shuflr.server.catalog import Catalog
from shuflr.server.edge import DEFAULT_LIMITS, Authenticate, Connection, Edge, Limits, anybody
from shuflr.server.live import Live, LiveStream
from shuflr.server.memory import Memory
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
_MODES = {MODE_RAW: "raw-frame", MODE_ZSTD: "zstd-batch", MODE_PLAIN: "plain-batch"}


class _Refused(Exception):
    """The handshake fails; the text is for the client."""


class WireEdge(Edge):
    """Serves shuflr-wire/1 on any number of listening sockets."""

    name = "shuflr-wire"

    def __init__(
        self,
        catalog: Catalog,
        memory: Memory,
        live: Optional[Live] = None,
        authenticate: Authenticate = anybody,
        limits: Limits = DEFAULT_LIMITS,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        super().__init__(catalog, memory, live, authenticate, limits, tls)
        self.buffers = Buffers()
        self.sums = Sums(memory.limit // 8)

    def connection(self, sock: socket.socket, peer: str, full: bool) -> "_Connection":
        return _Connection(self, sock, peer, full)


class _Connection(Connection):
    """One client, from its hello to its stream's end."""

    _edge: WireEdge

    def __init__(self, edge: WireEdge, sock: socket.socket, peer: str, full: bool) -> None:
        super().__init__(edge, sock, peer, full)
        self._decoder = Decoder(ClientHello, limit=_HELLO_LIMIT)
        self._sending = threading.Lock()
        self._last_sent = time.monotonic()
        self._beats = 0
        self._between = False  # no message is partly out
        self._cancelled = False
        self._complaint: Optional[str] = None  # about what the client said
        self._reset = False

    def _converse(self, deadline: float) -> None:
        self._start_tls(deadline)
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

        direct = send_file if not isinstance(self._sock, ssl.SSLSocket) and hasattr(os, "sendfile") else None
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
        self._reset_at_close()
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
