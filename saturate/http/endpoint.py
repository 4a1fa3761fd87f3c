"""Where requests go: an endpoint's address checked once, with proxy and TLS settings from the environment.

Holds no socket and starts nothing, so it may be made before a fork and shared by all threads.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

from urllib3.util import Url, make_headers, parse_url

from saturate.http.request import check_visible_ascii


@dataclass(frozen=True)
class Endpoint:
    """A checked endpoint. `base` has no trailing slash; a request goes to `base` + its route."""

    base: str
    scheme: str
    host: str
    port: int
    path: str
    authorization: Optional[str]
    proxy: Optional[Url]
    tls: Optional[ssl.SSLContext]

    @property
    def root(self) -> str:
        """The address up to the last "/v1", where engines serve /health and /metrics."""
        head, found, _ = self.base.rpartition("/v1")
        return head if found else self.base

    def target(self, route: str) -> str:
        """What the request line names for `route`: a path, or the whole address when a proxy forwards it."""
        if self.proxy is not None and self.scheme == "http":
            return self.base + route
        return self.path + route


def parse_endpoint(endpoint: Any) -> Endpoint:
    """`endpoint` checked and split. Raises TypeError or ValueError with a sentence that says what to pass."""
    example = 'such as "http://localhost:8000/v1"'
    if not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a URL string {example}, got {type(endpoint).__name__}")
    base = endpoint.strip().rstrip("/")
    if not base.lower().startswith(("http://", "https://")):
        raise ValueError(f"endpoint must start with http:// or https://, {example}; got {endpoint!r}")
    try:
        url = parse_url(base)
    except Exception as exc:
        raise ValueError(f"endpoint is not a URL ({exc}); pass one {example}") from None
    if not url.host:
        raise ValueError(f"endpoint names no host; pass one {example}; got {endpoint!r}")
    if url.query or url.fragment:
        raise ValueError(f"endpoint must not carry a query or fragment, since routes are appended to it; got {base!r}")
    check_visible_ascii("endpoint", url.path or "/")
    scheme = str(url.scheme)
    host = url.host.strip("[]")
    authorization = make_headers(basic_auth=unquote(url.auth))["authorization"] if url.auth else None
    # The address in log lines and request lines is the one without credentials.
    base = url._replace(auth=None).url if url.auth else base
    return Endpoint(
        base=base,
        scheme=scheme,
        host=host,
        port=url.port or (443 if scheme == "https" else 80),
        path=url.path or "",
        authorization=authorization,
        proxy=_environment_proxy(scheme, host, url.port),
        tls=_tls_context() if scheme == "https" else None,
    )


def _environment_proxy(scheme: str, host: str, port: Optional[int]) -> Optional[Url]:
    proxies = getproxies()
    address = proxies.get(scheme) or proxies.get("all")
    if not address or proxy_bypass(f"{host}:{port}" if port else host):
        return None
    url = parse_url(address if "://" in address else f"http://{address}")
    if url.scheme not in ("http", "https"):
        raise ValueError(f"the environment's proxy {address!r} is not an http or https proxy; unset it or set NO_PROXY")
    return url


def _tls_context() -> ssl.SSLContext:
    # The system's trust store; SSL_CERT_FILE and SSL_CERT_DIR are honoured by OpenSSL itself. The variable that
    # users of `requests` set for a private CA means the same here.
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if not bundle:
        return ssl.create_default_context()
    if os.path.isdir(bundle):
        return ssl.create_default_context(capath=bundle)
    return ssl.create_default_context(cafile=bundle)
