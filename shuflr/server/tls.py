"""A server's certificates as an `ssl` context, made anew at each reload: a bad file leaves the old one in use."""

import ssl
from typing import NamedTuple, Optional

from shuflr.errors import InputError


class Certificates(NamedTuple):
    """PEM files: the server's chain, its key, and the authorities that client certificates must come from; without
    these a client needs none."""

    chain: str
    key: str
    client_ca: Optional[str] = None

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or later. Raises InputError for a file that cannot be used, OSError for one that cannot be read."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.chain, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise InputError(
                f"--tls-cert {self.chain} and --tls-key {self.key} are no certificate and its key ({error.reason})"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise InputError(f"--tls-client-ca {self.client_ca} holds no certificate ({error.reason})") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _no_password() -> str:
    """A server cannot ask anybody; without this the library would ask the terminal."""
    raise InputError("--tls-key is encrypted; give one without a passphrase")
