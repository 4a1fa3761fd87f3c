"""What every test may use: requests and parses for the simulated server, and proof that nothing is left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A suite that runs as a shell's background job starts with SIGINT ignored, and its children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def chat(row: dict[str, Any]) -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": row["text"]}], "max_tokens": 4}


def text(row: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return {"answer": response["choices"][0]["message"]["content"]}


def texts(count: int) -> list[dict[str, Any]]:
    return [{"text": f"row {i}"} for i in range(count)]


def product_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("saturate-")]


def wait_until(condition: Any, seconds: float = 10.0) -> bool:
    """Whether `condition()` came true within a generous bound: for what other threads do in their own time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The test leaves no thread of ours."""
    yield
    assert wait_until(lambda: not product_threads()), product_threads()
