"""Both protocols on one socket, told apart by the first byte: shuflr-wire/1 begins with a zero, HTTP with a letter."""

import select
import socket
from typing import Any

from shuflr.server.edge import Connection, Edge
from shuflr.server.http_edge import HttpEdge
from shuflr.server.wire_edge import WireEdge


class EitherEdge(Edge):
    """Hands each connection to the edge whose protocol its client speaks."""

    name = "shuflr-either"

    def __init__(self, http: HttpEdge, wire: WireEdge) -> None:
        super().__init__(http.catalog, http.memory, http.live, limits=http.limits)
        self.http = http
        self.wire = wire

    def connection(self, sock: socket.socket, peer: str, full: bool) -> "_Connection":
        return _Connection(self, sock, peer, full)


class _Connection(Connection):
    """A client that has not said anything yet."""

    _edge: EitherEdge

    def _converse(self, deadline: float) -> None:
        first = self._first(deadline)
        if first:
            edge: Edge = self._edge.wire if first == b"\0" else self._edge.http
            edge.admit(self._sock.dup(), "")

    def _first(self, deadline: float) -> Any:
        """The first byte, which stays where it is; none when the client leaves before, or the server drains."""
        while True:
            try:
                return self._sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                if not self._wait(select.POLLIN, deadline):
                    return b""
