"""Log lines on stderr: one handler, one prefix, installed only when the user configured no logging."""

from __future__ import annotations

import logging
import sys

LOGGER = "saturate"


def speak_on_stderr() -> None:
    """Gives the "saturate" logger a plain stderr handler, unless it or the root logger has one already."""
    logger = logging.getLogger(LOGGER)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("[pump] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever sys.stderr is at the time, so that a replaced one (notebooks, tests) is honoured."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)
