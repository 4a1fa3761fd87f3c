"""Where a dataset is served, out of a URL. Pure."""

import re
from typing import NamedTuple, Optional
from urllib.parse import unquote, urlsplit

from shuflr.errors import InputError


class Scheme(NamedTuple):
    """What a URL scheme stands for. port: None where the URL must say it."""

    transport: str
    is_http: bool
    tls: bool
    unix: bool
    port: Optional[int]


SCHEMES = {
    "http": Scheme("http", True, False, False, 80),
    "https": Scheme("https", True, True, False, 443),
    "http+unix": Scheme("http+unix", True, False, True, None),
    "shuflr": Scheme("shuflr-wire/1", False, False, False, None),
    "shuflrs": Scheme("shuflr-wire/1+tls", False, True, False, None),
    "shuflr+unix": Scheme("shuflr-wire/1+unix", False, False, True, None),
}


class Address(NamedTuple):
    """A dataset on a server: host and port, or the path of a unix socket."""

    url: str
    scheme: Scheme
    host: str
    port: int
    socket_path: str
    dataset_id: str

    @property
    def authority(self) -> str:
        """Host and port as an HTTP Host header has them."""
        if self.scheme.unix:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == self.scheme.port else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """`SCHEME://HOST:PORT/…/DATASET`, or `shuflr+unix:///PATH/OF/SOCKET/DATASET`. Raises InputError (a ValueError).

    The dataset is the last segment of the path; what precedes it, a query and a fragment mean nothing, as for the
    public client. Percent escapes are resolved, IPv6 literals stand in brackets."""
    if not isinstance(url, str):
        raise TypeError(f"a URL is a string, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a URL: {error}") from None
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        raise InputError(f"{url!r}: the scheme is one of {', '.join(SCHEMES)}")
    folder, _, last = parts.path.rpartition("/")
    dataset_id = unquote(last)
    if not dataset_id:
        raise InputError(f"{url!r} names no dataset: its path ends with the id, as in {parts.scheme}://HOST/ID")
    if re.search(r"[\x00-\x1f\x7f/]", dataset_id):
        raise InputError(f"{url!r}: a dataset id has no control characters and no slash")
    if scheme.unix:
        if parts.netloc or not folder:
            raise InputError(f"{url!r}: a unix socket is written {parts.scheme}:///PATH/OF/SOCKET/DATASET")
        return Address(url, scheme, "", 0, unquote(folder), dataset_id)
    if not parts.hostname:
        raise InputError(f"{url!r} names no host")
    if port is None and scheme.port is None:
        raise InputError(f"{url!r} names no port, and {parts.scheme} has no usual one")
    return Address(url, scheme, unquote(parts.hostname), port or scheme.port or 0, "", dataset_id)
