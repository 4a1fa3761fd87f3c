"""Where a server listens, and what it must be told before it listens beyond this machine."""

import os
import socket
import stat
from typing import NamedTuple

from shuflr.errors import InputError
from shuflr.server.sockets import is_loopback

_BACKLOG = 1024


class Address(NamedTuple):
    """A numeric IP address and a port; 0 takes any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """`127.0.0.1:9000`, `[::1]:9000`. Raises InputError."""
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        numeric = port.isascii() and port.isdigit() and int(port[:6]) <= 65535
        if not colon or not numeric or (":" in bare) != (bare != host):
            raise InputError(f"{text!r} is not IP:PORT; write 127.0.0.1:9000 or [::1]:9000, port 0 for any free one")
        try:
            socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            raise InputError(f"{text!r}: {bare!r} is not a numeric IP address") from None
        return cls(bare, int(port))

    @property
    def public(self) -> bool:
        """Whether others than this machine can reach it."""
        return not is_loopback(tuple(self))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_public(address: Address, bind_public: bool, tls: bool, insecure: bool) -> None:
    """Raises InputError where an address can be reached from outside and nobody said that this is meant."""
    if not address.public:
        return
    if not bind_public:
        raise InputError(f"{address} is non-loopback - pass --bind-public to serve beyond this machine")
    if not tls and not insecure:
        raise InputError(
            f"{address} is non-loopback and without TLS - give --tls-cert and --tls-key, or --insecure-public"
        )


def listen(address: Address) -> socket.socket:
    """A listening socket. Raises OSError that names the address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(tuple(address), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {os.strerror(error.errno or 0)}") from None


def bound(listener: socket.socket) -> Address:
    """Where a socket listens, with its real port."""
    return Address(*listener.getsockname()[:2])


def listen_unix(path: str) -> socket.socket:
    """A listening socket in the file system, for its owner alone until somebody changes its mode. What a dead server
    left there is replaced. Raises InputError when something else is in the way, OSError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _clear(path)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
    except Exception as error:
        listener.close()
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from None
        raise
    return listener


def _clear(path: str) -> None:
    """Removes a socket that nobody listens on."""
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise InputError(f"--unix {path}: there is a file in the way that is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise InputError(f"--unix {path}: another server listens there")
