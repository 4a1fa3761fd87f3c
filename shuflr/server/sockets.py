"""How an accepted connection is set up, whatever is spoken on it."""

import ipaddress
import socket
from contextlib import suppress
from typing import Any


def prepare(sock: socket.socket) -> None:
    """Sends at once, and notices in time that a peer's machine is gone.

    A peer on this machine gets a congestion control without pacing where the system's own has it: there is no network
    to spare, and the timers cost up to half of what a raw stream costs in all."""
    if sock.family == socket.AF_UNIX:
        return
    with suppress(OSError):  # the peer has left already
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_CONGESTION") and is_loopback(sock.getpeername()):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def is_loopback(address: Any) -> bool:
    """Whether a TCP address is this machine's loopback."""
    try:
        host = ipaddress.ip_address(address[0].partition("%")[0])
    except (ValueError, AttributeError, IndexError, TypeError):
        return False
    mapped = getattr(host, "ipv4_mapped", None)
    return bool((mapped or host).is_loopback)


def peer_name(address: Any) -> str:
    """A client's address for a log."""
    if isinstance(address, tuple):
        return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
    return "unix"
