"""What was received and what was answered, so that a test can prove what was paid twice.

A request's id is its `x-request-id` header, or else a digest of its route and body: then two identical rows are one id,
and a request that is sent again is seen without any help from the client.

The record file gets one line `id status` per answered request, in one write to a descriptor opened for appending: a
line is whole or absent, whoever is killed, and it is there before the client sees the answer. The status is the last
word of a line. Beside HTTP's own there are two: 0, the work was done and the connection cut or silenced by a fault; 499
(nginx's), the request was given up before its answer: its client left, or the server went down.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from typing import Optional

CUT = 0
GIVEN_UP = 499


def request_id(header: Optional[str], route: str, body: bytes) -> str:
    """The id of a request."""
    if header:
        return header
    name = hashlib.blake2b(body, digest_size=8, key=route.encode("latin-1")[:64])
    return name.hexdigest()


class Ledger:
    """Ids in the order of their requests and of their answers. Any thread may write."""

    def __init__(self, record: Optional[str]) -> None:
        self.received: list[str] = []
        self.served: list[str] = []  # answered with a 2xx
        self._statuses: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._record = record
        self._file = -1

    def open(self) -> None:
        """Open the record file, if there is one. Without it nothing is written."""
        if self._record is not None:
            self._file = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def arrived(self, name: str) -> None:
        self.received.append(name)

    def answered(self, name: str, status: int) -> None:
        with self._lock:
            self._statuses[status] += 1
            if 200 <= status < 300:
                self.served.append(name)
            if self._file >= 0:
                os.write(self._file, f"{name} {status}\n".encode())

    def counts(self) -> dict[int, int]:
        """Answers by status."""
        with self._lock:
            return dict(sorted(self._statuses.items()))

    def paid_twice(self) -> dict[str, int]:
        """How often each id was answered with a 2xx, of those answered more than once."""
        return {name: times for name, times in Counter(self.served).items() if times > 1}
