"""Ctrl-C and SIGTERM as orderly ends of a run.

Python raises KeyboardInterrupt between any two instructions, so also when a record is half handed over. Inside
`with Interrupts() as interrupts:` a signal that arrives while the run holds (`hold` ... `release`) is raised at
`release`; one that arrives elsewhere is raised at once, and so is every further one: the second press never waits.

SIGINT raises KeyboardInterrupt, SIGTERM raises SystemExit(143), the status that a shell shows for it. The handlers
that were there before come back at the end. Outside the main thread, where Python allows no handlers, nothing is done.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn, Optional


class Interrupts:
    """Handles SIGINT and SIGTERM while it is open; see the module."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._holding = False
        self._pending: Optional[int] = None

    def hold(self) -> None:
        """From here to `release` a first signal waits."""
        self._holding = True

    def release(self) -> None:
        """Raises what arrived meanwhile."""
        self._holding = False
        if self._pending is not None:
            number, self._pending = self._pending, None
            _raise(number)

    def _arrived(self, number: int, frame: Optional[FrameType]) -> None:
        if self._holding and self._pending is None:
            self._pending = number
        else:
            _raise(number)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None: a handler that was not installed from Python, and could not be put back. Ignored: whoever
                # started us (nohup, a shell's background job) does not want this signal to end the run.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], exc: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
