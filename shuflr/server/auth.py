"""Who may come in: bearer tokens from a file.

Only SHA-256 sums of tokens are kept, and every one is compared in constant time: neither lengths nor places can be
measured from outside. A file that cannot be used leaves the tokens that were valid before.
"""

import hashlib
import hmac
import os
from typing import Optional

from shuflr.errors import InputError

_HASHED = "sha256:"
_BEARER = b"Bearer "


def _digest(line: str, place: str) -> bytes:
    """The sum of the token on a line: of the token itself, or given as `sha256:` and 64 hexadecimal digits."""
    if not line.startswith(_HASHED):
        return hashlib.sha256(line.encode()).digest()
    try:
        digest = bytes.fromhex(line[len(_HASHED) :])
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise InputError(f"{place}: {_HASHED} is followed by 64 hexadecimal digits")
    return digest


class Tokens:
    """The tokens of a file: one a line in UTF-8, trimmed; empty lines and those that begin with # are skipped.

    Raises InputError for a file without tokens or with one that makes no sense, OSError for one that cannot be read."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self._path = os.fspath(path)
        self._digests = self._read()

    def reload(self) -> None:
        """Takes the file as it is now. Raises like the constructor, and keeps the old tokens then."""
        self._digests = self._read()

    def _read(self) -> "list[bytes]":
        with open(self._path, "rb") as file:
            data = file.read()
        try:
            lines = [line.strip() for line in data.decode().split("\n")]
        except UnicodeDecodeError as error:
            raise InputError(f"--auth-tokens {self._path} is not UTF-8 (byte {error.start})") from None
        digests = [
            _digest(line, f"--auth-tokens {self._path}, line {number}")
            for number, line in enumerate(lines, 1)
            if line and not line.startswith("#")
        ]
        if not digests:
            raise InputError(f"--auth-tokens {self._path} contains no tokens")
        return digests

    def accept(self, token: bytes) -> bool:
        """Whether a token is one of them."""
        given = hashlib.sha256(token).digest()
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found

    def of_hello(self, auth: bytes) -> Optional[str]:
        """What is wrong with the token in a client's hello, if anything is."""
        token = auth.decode("utf-8", "replace").strip().encode()
        if not token:
            return "Malformed"
        return None if self.accept(token) else "Mismatch"

    def of_header(self, header: bytes) -> Optional[str]:
        """What is wrong with the value of an Authorization header (empty: there is none), if anything is."""
        if not header:
            return "missing Authorization header"
        token = header[len(_BEARER) :].strip()
        if not header.startswith(_BEARER) or not token:
            return "malformed Authorization header"
        return None if self.accept(token) else "bearer token not accepted"
