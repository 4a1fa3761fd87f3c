"""Frames on the socket between a sink and its writer: how long it is, and the bytes.

Sans-IO: bytes in, frames out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<HI")
_MAGIC = 0x5AFE


def frame(payload: bytes) -> bytes:
    """One frame of less than 4 GiB."""
    return _HEADER.pack(_MAGIC, len(payload)) + payload


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, data: bytes) -> Iterator[bytes]:
        """The payloads of the frames that are complete with `data`. ValueError if the stream is out of step."""
        rest = self._rest
        rest += data
        position = 0
        payloads = []
        while len(rest) - position >= _HEADER.size:
            magic, length = _HEADER.unpack_from(rest, position)
            if magic != _MAGIC:
                raise ValueError("the stream between the sink and its writer is out of step")
            end = position + _HEADER.size + length
            if end > len(rest):
                break
            payloads.append(bytes(rest[position + _HEADER.size : end]))
            position = end
        del rest[:position]
        return iter(payloads)
