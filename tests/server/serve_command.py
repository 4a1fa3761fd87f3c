"""`shuflr serve` in a process of its own, as the tests drive it."""

import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading

from tests.conftest import wait_until

COMMAND = [sys.executable, "-c", "from shuflr.cli import main; main()", "serve"]


class ServeCommand:
    """Started and ready when entered; ended when left. `said` holds the log, one dict a line.

    ready: how many listeners have to say that they are. by: a command that runs it."""

    def __init__(self, *arguments, ready=1, by=()):
        self.said = []
        self._ready = ready
        self._lines = queue.Queue()
        self.process = subprocess.Popen(
            [*by, *COMMAND, *map(str, arguments), "--log-format", "json"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, "SHUFLR_LOG": "info"},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self):
        while len([entry for entry in self.said if "bound" in entry["message"]]) < self._ready:
            assert self.next() is not None, self.said
        return self

    def next(self, seconds=30):
        """The next line of the log; None when it ends."""
        line = self._lines.get(timeout=seconds)
        if line is None:
            return None
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"message": line, "level": "text"}
        self.said.append(entry)
        return entry

    def until(self, text):
        """Reads the log up to a message that contains the text; returns that line."""
        while (entry := self.next()) is not None:
            if text in entry["message"]:
                return entry
        raise AssertionError(f"{text!r} was not said: {self.said}")

    def address(self, protocol="http"):
        for entry in self.said:
            if entry["message"] == f"serve({protocol}) bound":
                host, _, port = entry["addr"].rpartition(":")
                return host.strip("[]"), int(port)
        raise AssertionError(f"{protocol} is not bound: {self.said}")

    def get(self, target, headers=(), context=None):
        """Status, headers and body of a GET."""
        if context is None:
            connection = http.client.HTTPConnection(*self.address(), timeout=60)
        else:
            connection = http.client.HTTPSConnection(*self.address(), timeout=60, context=context)
        try:
            connection.request("GET", target, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def open(self, target):
        """A socket on which a stream was asked for, after its head."""
        sock = socket.create_connection(self.address(), timeout=60)
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            piece = sock.recv(1)
            assert piece, head
            head += piece
        return sock, head.decode()

    def tell(self, number):
        os.kill(self.process.pid, number)

    def end(self, number=signal.SIGTERM):
        """Ends it with a signal; its exit code."""
        if self.process.poll() is None:
            self.tell(number)
        code = self.process.wait(60)
        self._reader.join(30)
        while not self._lines.empty():
            self.next()
        return code

    def __exit__(self, *exception):
        try:
            self.end()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(30)
            self.process.stderr.close()


def children(pid):
    """The processes that a process has started."""
    path = f"/proc/{pid}/task/{pid}/children"
    with open(path) as file:
        return [int(child) for child in file.read().split()]


__all__ = ["COMMAND", "ServeCommand", "children", "wait_until"]
