"""Records to standard output, and progress to standard error."""

import os
import sys
from typing import Any, Optional

_SMALL = 1 << 17


class RecordOutput:
    """Writes blocks to a file descriptor: large ones as they are, small ones together."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._pending = bytearray()

    def write(self, block: Any) -> None:
        if len(block) < _SMALL:
            self._pending += block
            if len(self._pending) < _SMALL:
                return
            block, self._pending = self._pending, bytearray()
        elif self._pending:
            self.flush()
        self._write(memoryview(block))

    def flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._write(memoryview(pending))

    def _write(self, view: memoryview) -> None:
        while len(view):
            view = view[os.write(self._fd, view) :]


class Progress:
    """A bar that counts bytes, when it is wanted and can be seen; otherwise nothing."""

    def __init__(self, wanted: str, total: Optional[int], what: str) -> None:
        self._bar: Any = None
        if wanted == "always" or (wanted == "auto" and sys.stderr.isatty()):
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, file=sys.stderr)

    def add(self, size: int) -> None:
        if self._bar is not None:
            self._bar.update(size)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
