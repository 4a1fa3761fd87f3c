"""A client of the simulated server that hides nothing: one connection, one request, every byte of the answer."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional

import pytest

from saturate.simulate import Simulator

CHAT = "/v1/chat/completions"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])


class Client:
    """One kept-alive connection."""

    def __init__(self, server: Simulator, timeout: float = 10.0) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)

    def send(self, content: str = "hi", name: Optional[str] = None, route: str = CHAT, **more: Any) -> None:
        headers = {"Content-Type": "application/json"}
        if name is not None:
            headers["x-request-id"] = name
        body = {"messages": [{"role": "user", "content": content}], **more}
        self.connection.request("POST", route, json.dumps(body), headers)

    def receive(self) -> Answer:
        response = self.connection.getresponse()
        headers = {key.lower(): value for key, value in response.getheaders()}
        return Answer(response.status, headers, response.read())

    def chat(self, content: str = "hi", name: Optional[str] = None, **more: Any) -> Answer:
        self.send(content, name, **more)
        return self.receive()

    def get(self, path: str) -> Answer:
        self.connection.request("GET", path)
        return self.receive()

    def post(self, path: str, body: Any, headers: Optional[dict[str, str]] = None) -> Answer:
        self.connection.request("POST", path, body, headers or {})
        return self.receive()


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    """Makes clients, and closes them."""
    with contextlib.ExitStack() as stack:

        def make(server: Simulator, timeout: float = 10.0) -> Client:
            made = Client(server, timeout)
            stack.callback(made.connection.close)
            return made

        yield make


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `condition` came true, for what another thread does in its own time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def descriptors() -> int:
    """Open descriptors of this process, without those that only wait to be collected."""
    gc.collect()
    return len(os.listdir("/dev/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("simulate-")]
