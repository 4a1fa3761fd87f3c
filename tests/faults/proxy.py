"""A TCP proxy that does to a stream what networks do: cut it, reset it, hold it, damage it, hand it over in crumbs.

Each accepted connection asks `faults` for what happens to it; the bytes that a fault counts are those from the server
to the client. Every thread and socket is gone after `close`.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple


class Fault(NamedTuple):
    """What happens to a connection behind its first `after` bytes.

    how: "cut" (ended with a FIN, as a server would that is through), "reset" (an RST), "hold" (not one byte more, and
    the connection stays), "flip" (one bit of the next byte), "refuse" (closed as soon as it is accepted), "crumbs"
    (from here on in pieces of 1 to 7 bytes), "pass" (nothing)."""

    how: str
    after: int = 0
    bit: int = 0


PASS = Fault("pass")


class Proxy:
    """Listens on a port of its own. faults(number of the connection, from 0): what happens to it."""

    def __init__(self, target: tuple[str, int], faults: Callable[[int], Fault] = lambda number: PASS) -> None:
        self.faults = faults
        self.passed: list[int] = []  # bytes to the client, by connection
        self._target = target
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self.passed)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            number = len(self.passed)
            self.passed.append(0)
            thread = threading.Thread(target=self._serve, args=(client, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, number: int) -> None:
        fault = self.faults(number)
        with client, contextlib.suppress(OSError):
            if fault.how == "refuse":
                return
            with socket.create_connection(self._target) as server:
                with self._lock:
                    self._sockets |= {client, server}
                try:
                    self._relay(client, server, fault, number)
                finally:
                    with self._lock:
                        self._sockets -= {client, server}

    def _relay(self, client: socket.socket, server: socket.socket, fault: Fault, number: int) -> None:
        listening = [client, server]
        while not self._closed.is_set():
            readable, _, _ = select.select(listening, [], [])
            if client in readable:
                data = client.recv(65536)
                if data:
                    server.sendall(data)
                else:
                    listening.remove(client)
                    server.shutdown(socket.SHUT_WR)
            if server in readable:
                data = server.recv(65536)
                if not data or not self._hand_over(client, data, fault, number):
                    break
        if fault.how == "hold":
            self._closed.wait(60)  # nobody hears of the end either
        if fault.how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _hand_over(self, client: socket.socket, data: bytes, fault: Fault, number: int) -> bool:
        """Passes bytes on as the fault allows; whether the connection goes on."""
        left = fault.after - self.passed[number]
        ends = fault.how in ("cut", "reset", "hold") and left < len(data)
        if ends:
            data = data[:left]
        if fault.how == "flip" and 0 <= left < len(data):
            data = data[:left] + bytes([data[left] ^ 1 << fault.bit]) + data[left + 1 :]
        if fault.how == "crumbs" and left < len(data):
            self._crumble(client, data, random.Random(number))
        else:
            client.sendall(data)
        self.passed[number] += len(data)
        return not ends

    @staticmethod
    def _crumble(client: socket.socket, data: bytes, draw: random.Random) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = 0
        while at < len(data):
            step = draw.randint(1, 7)
            client.sendall(data[at : at + step])
            at += step

    def close(self) -> None:
        """Ends every connection and waits for the threads."""
        self._closed.set()
        with self._lock:
            ending = [self._listener, *self._sockets]
            for each in ending:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in it
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
