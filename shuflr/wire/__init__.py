"""shuflr-wire/1 without a socket: messages as values, bytes out of them, and them out of bytes. Pure.

`encode` makes the bytes of a message, a `Decoder` takes bytes as they come and gives messages, and `opening` is the
JSON in the two hellos.
"""

from shuflr.wire.codec import Decoder, encode
from shuflr.wire.messages import (
    MAX_PAYLOAD,
    AddCredit,
    Cancel,
    ClientHello,
    EpochBoundary,
    Heartbeat,
    Message,
    PlainBatch,
    Pong,
    RawFrame,
    ServerHello,
    StreamClosed,
    StreamError,
    WireError,
    ZstdBatch,
)
from shuflr.wire.opening import OpenStream, StreamOpened

__all__ = [
    "MAX_PAYLOAD",
    "AddCredit",
    "Cancel",
    "ClientHello",
    "Decoder",
    "EpochBoundary",
    "Heartbeat",
    "Message",
    "OpenStream",
    "PlainBatch",
    "Pong",
    "RawFrame",
    "ServerHello",
    "StreamClosed",
    "StreamError",
    "StreamOpened",
    "WireError",
    "ZstdBatch",
    "encode",
]
