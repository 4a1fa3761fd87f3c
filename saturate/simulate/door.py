"""The listening socket, which can be shut for a while.

Invariant: from construction to `close` the port is ours. A shut door is bound and does not listen, so whoever connects
is refused at once, as by a server that is not running. That holds also when a process forked from this one has a copy
of the socket: it stops listening before it is closed.
"""

from __future__ import annotations

import socket
from typing import Optional

_BACKLOG = 1024  # a client may open its whole window at once


class Door:
    """Binds on construction (port 0: any free one), shut. Raises OSError when the port is taken."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self.port = port
        self.is_open = False
        self.socket = self._bind()
        self.port = self.socket.getsockname()[1]

    def _bind(self) -> socket.socket:
        bound = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._host, self.port))
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        return bound

    def open(self) -> None:
        self.socket.listen(_BACKLOG)
        self.is_open = True

    def shut(self) -> None:
        """Refuse connections. Those that wait to be accepted are reset."""
        self.close()
        self.socket = self._bind()
        self.is_open = False

    def accept(self) -> Optional[socket.socket]:
        """The next connection, in blocking mode and without Nagle's delay; None when there is none now."""
        try:
            accepted, _ = self.socket.accept()
        except OSError:  # none, gone again, or no descriptor left for it
            return None
        accepted.setblocking(True)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted

    def close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it did not listen
            pass
        self.socket.close()
