"""A connected socket to an address: TCP or unix, with TLS where the scheme says so, through a proxy where the
environment does. Everything that can fail here raises StreamError with the address in its sentence.
"""

import http.client
import socket
import ssl
import urllib.request
from base64 import b64encode
from typing import Any, NamedTuple, Optional, Union
from urllib.parse import unquote, urlsplit

from shuflr.client.address import Address
from shuflr.errors import InputError, StreamError

Certificate = Union[str, "tuple[str, str]", None]


class Reach(NamedTuple):
    """How a client reaches servers. timeout: seconds until a stream is open. read_timeout: of silence in one.

    tls_ca_cert: a PEM file that is trusted instead of the system's authorities. client_cert: a PEM file with
    certificate and key, or one of each. mode: how a wire server should send records (wire.opening.MODES)."""

    auth_token: Optional[str] = None
    tls_ca_cert: Optional[str] = None
    client_cert: Certificate = None
    timeout: float = 30.0
    read_timeout: float = 60.0
    mode: Optional[str] = None


class ConnectionLost(StreamError):
    """The connection is gone, and another one may go on. silent: nothing came for the whole time-out. wait: seconds
    that the server asked to be left alone."""

    def __init__(self, sentence: str, silent: bool = False, wait: float = 0.0) -> None:
        super().__init__(sentence)
        self.silent = silent
        self.wait = wait


def lost(what: str, error: BaseException) -> ConnectionLost:
    """What an operation of a socket failed with."""
    silent = isinstance(error, socket.timeout)
    said = "nothing came within the time-out" if silent else str(error) or type(error).__name__
    return ConnectionLost(f"{what}: {said}", silent)


def tls_context(reach: Reach) -> ssl.SSLContext:
    """Certificates are verified and hosts compared, always. Raises OSError for a file that cannot be read,
    InputError for one that holds no certificate."""
    try:
        context = ssl.create_default_context(cafile=reach.tls_ca_cert)
        if reach.client_cert is not None:
            files = (reach.client_cert,) if isinstance(reach.client_cert, str) else reach.client_cert
            context.load_cert_chain(*files)
    except ssl.SSLError as error:
        file = reach.tls_ca_cert or reach.client_cert
        raise InputError(f"{file}: no certificate in it can be used ({error})") from None
    return context


def _untrusted(address: Address, error: ssl.SSLCertVerificationError) -> StreamError:
    return StreamError(f"{address.url}: the server's certificate is not trusted: {error.verify_message}")


def connected(address: Address, reach: Reach) -> Any:
    """A socket to the address, its time-out the one for opening."""
    sock = None
    try:
        if address.scheme.unix:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(reach.timeout)
            sock.connect(address.socket_path)
            return sock
        sock = socket.create_connection((address.host, address.port), timeout=reach.timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not address.scheme.tls:
            return sock
        return tls_context(reach).wrap_socket(sock, server_hostname=address.host)
    except OSError as error:
        if sock is not None:
            sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise _untrusted(address, error) from error
        raise lost(f"cannot reach {address.url}", error) from error


def _proxy(address: Address) -> Optional[str]:
    """The proxy that the environment names for an HTTP address."""
    if address.scheme.unix or urllib.request.proxy_bypass(f"{address.host}:{address.port}"):
        return None
    return urllib.request.getproxies().get("https" if address.scheme.tls else "http")


def _proxy_headers(proxy: Any) -> "dict[str, str]":
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}


def requested(address: Address, target: str, headers: "dict[str, str]", reach: Reach) -> "tuple[Any, Any]":
    """Sends a GET and returns the connection and the response, whose body has not been read.

    Proxies come from the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY); TLS goes through one by CONNECT."""
    named = _proxy(address)
    proxy = urlsplit(named if "://" in named else f"http://{named}") if named else None
    connection: http.client.HTTPConnection
    try:
        if proxy is not None and proxy.hostname and address.scheme.tls:
            context = tls_context(reach)
            connection = http.client.HTTPSConnection(
                proxy.hostname, proxy.port or 80, timeout=reach.timeout, context=context
            )
            connection.set_tunnel(address.host, address.port, headers=_proxy_headers(proxy))
        elif proxy is not None and proxy.hostname:
            connection = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=reach.timeout)
            target = f"http://{address.authority}{target}"
            headers = {**headers, **_proxy_headers(proxy)}
        else:
            connection = http.client.HTTPConnection(address.host or "localhost", address.port or 80)
            connection.sock = connected(address, reach)
        connection.request("GET", target, headers={"Host": address.authority, **headers})
        return connection, connection.getresponse()
    except StreamError:
        raise
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(address, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise lost(f"HTTP GET {address.url}", error) from error


def wake_reader(sock: Any) -> None:
    """Ends a connection under a thread that reads from it. For the process that made it: a forked one would end its
    parent's."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS too: without a word to the peer, which may not listen
    except OSError:
        pass
