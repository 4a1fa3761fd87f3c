"""A request becomes a stream of bytes that an edge pulls, decoded or raw: what both edges need, in one place."""

from shuflr.server.decoded import DecodedStream
from shuflr.server.forms import Batches, Lines
from shuflr.server.plan import Plan, Request
from shuflr.server.raw import Buffers, RawStream
from shuflr.server.stream import BrokenStream, SendFile, Stream, Write

__all__ = [
    "Batches",
    "BrokenStream",
    "Buffers",
    "DecodedStream",
    "Lines",
    "Plan",
    "RawStream",
    "Request",
    "SendFile",
    "Stream",
    "Write",
]
