"""What can go wrong between a request and its answer. Mapped once, at the edge, from what urllib3 and sockets raise."""

from __future__ import annotations


class FatalTransportError(RuntimeError):
    """The run cannot go on: the endpoint stayed down for the breaker's whole patience, or the controller died."""


class Interrupted(Exception):
    """This thread's work was called off: its run is ending. Never shown to a user."""


class AttemptFailed(Exception):
    """One attempt brought no answer. `kind` is the name shown in an error row: `transport: <kind>: <message>`.

    `answered`: the server's status line had arrived, so that the server lives and only its body failed.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind
        self.answered = False

    def __str__(self) -> str:
        return f"transport: {self.kind}: {super().__str__()}"
