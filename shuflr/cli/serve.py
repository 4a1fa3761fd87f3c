"""`shuflr serve`: named datasets for many training workers, over HTTP and shuflr-wire/1."""

import argparse
import json
import logging
import time
from typing import Optional

from shuflr.cli.options import add_log_level, byte_size, log, number, whole
from shuflr.errors import InputError
from shuflr.server.binding import Address, check_public
from shuflr.server.edge import Limits
from shuflr.server.life import Settings
from shuflr.server.life import run as serve
from shuflr.server.tls import Certificates

_LIMITS = Limits()
_SECONDS = number(0.0, 86400.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--http", metavar="ADDR", help="IP:PORT for HTTP/1.1; port 0: any free one, said when it is ready")
    add("--wire", metavar="ADDR", help="IP:PORT for shuflr-wire/1")
    add("--unix", metavar="PATH", help="a socket in the file system, for both protocols")
    add("--dataset", action="append", default=[], metavar="ID=PATH", help="a dataset to serve; repeatable")
    add("--datasets", metavar="FILE", help="more of them, one ID=PATH a line; read again on SIGHUP")
    add("--workers", type=whole(1, 1024), default=1, metavar="N", help="processes that share the ports (default 1)")
    add("--memory", type=byte_size, metavar="SIZE", help="for all streams (default a quarter of the machine's)")
    add("--max-connections", type=whole(1, 1 << 20), default=_LIMITS.connections, metavar="N",
        help=f"at once for each protocol (default {_LIMITS.connections})")  # fmt: skip
    add("--drain-timeout", type=_SECONDS, default=30.0, metavar="S",
        help="seconds for streams to end after SIGTERM or SIGINT (default 30)")  # fmt: skip
    add("--handshake-timeout", type=_SECONDS, default=_LIMITS.handshake, metavar="S",
        help=f"seconds in which a request must be there (default {_LIMITS.handshake:g})")  # fmt: skip
    add("--stall-timeout", type=_SECONDS, metavar="S",
        help="seconds that a client may take nothing (default: for ever)")  # fmt: skip
    add("--bind-public", action="store_true", help="allow addresses that others than this machine can reach")
    add("--insecure-public", action="store_true", help="allow these without TLS")
    add("--tls-cert", metavar="PEM", help="the server's certificate chain, for HTTP and wire")
    add("--tls-key", metavar="PEM", help="its key")
    add("--tls-client-ca", metavar="PEM", help="admit only clients with a certificate of these authorities")
    add("--auth", choices=("none", "bearer", "mtls"), default="none", help="who may come in (default none)")
    add("--auth-tokens", metavar="FILE", help="tokens, one a line, or sha256: and the sum of one; with --auth bearer")
    add("--log-format", choices=("text", "json"), default="text", help="default text")
    add_log_level(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    handler = log(arguments).handlers[0]
    handler.setFormatter(JsonLines() if arguments.log_format == "json" else TextLines())
    return serve(settings)


def _settings(arguments: argparse.Namespace) -> Settings:
    if not (arguments.http or arguments.wire or arguments.unix):
        raise InputError("serve needs --http ADDR, --wire ADDR or --unix PATH")
    certificates = _certificates(arguments)
    if arguments.auth == "bearer" and not arguments.auth_tokens:
        raise InputError("--auth=bearer requires --auth-tokens <PATH>")
    if arguments.auth == "mtls" and arguments.unix:
        raise InputError("--unix has no certificates: leave it out with --auth=mtls")
    addresses = [Address.parse(text) if text else None for text in (arguments.http, arguments.wire)]
    for address in addresses:
        if address is not None:
            check_public(address, arguments.bind_public, certificates is not None, arguments.insecure_public)
    return Settings(
        datasets=tuple(arguments.dataset),
        dataset_list=arguments.datasets,
        http=addresses[0],
        wire=addresses[1],
        unix=arguments.unix,
        workers=arguments.workers,
        memory=arguments.memory,
        drain_timeout=arguments.drain_timeout,
        limits=_LIMITS._replace(
            connections=arguments.max_connections,
            handshake=arguments.handshake_timeout,
            stall=arguments.stall_timeout,
        ),
        auth=arguments.auth,
        tokens=arguments.auth_tokens,
        certificates=certificates,
    )


def _certificates(arguments: argparse.Namespace) -> Optional[Certificates]:
    both = arguments.tls_cert is not None and arguments.tls_key is not None
    if arguments.auth == "mtls" and not both:
        raise InputError("--auth=mtls requires --tls-cert/--tls-key")
    if arguments.auth == "mtls" and not arguments.tls_client_ca:
        raise InputError("--auth=mtls requires --tls-client-ca")
    if not both and (arguments.tls_cert or arguments.tls_key or arguments.tls_client_ca):
        raise InputError("--tls-cert and --tls-key go together, and --tls-client-ca needs both")
    return Certificates(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca) if both else None


class TextLines(logging.Formatter):
    """A line for people; a record's `fields` follow as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in getattr(record, "fields", {}).items())
        text = f"shuflr: {record.levelname}: {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {
            "time": f"{moment}.{int(record.msecs):03d}Z", "level": record.levelname.lower(), "pid": record.process,
            "message": record.getMessage(), **getattr(record, "fields", {}),
        }  # fmt: skip
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
