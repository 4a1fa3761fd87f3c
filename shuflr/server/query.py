"""The query of an HTTP stream as a request. Pure: bytes in, a request out.

Pairs are split at `&` and the first `=`; keys are taken as they are, values are percent-decoded, the last of several
wins, and what is unknown is ignored. Numbers and their complaints are as the public server has them.
"""

from typing import Optional
from urllib.parse import unquote_to_bytes

from shuflr.errors import InputError
from shuflr.server.streaming import Request

_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1


def parameters(query: bytes) -> "dict[bytes, str]":
    """The pairs of a query, values decoded: `+` is a space, what is no UTF-8 becomes U+FFFD."""
    found = {}
    for pair in query.split(b"&"):
        key, equals, value = pair.partition(b"=")
        if equals:
            found[key] = unquote_to_bytes(value.replace(b"+", b" ")).decode("utf-8", "replace")
    return found


def _number(values: "dict[bytes, str]", key: str, most: int) -> Optional[int]:
    text = values.get(key.encode())
    if text is None:
        return None
    digits = text[1:] if text.startswith("+") else text
    if not text:
        raise InputError(f"bad {key}: cannot parse integer from empty string")
    if not (digits.isascii() and digits.isdigit()):
        raise InputError(f"bad {key}: invalid digit found in string")
    # Longer ones are too large whatever they say, and a long conversion costs the square of its length.
    digits = digits.lstrip("0") or "0"
    if len(digits) > 20 or int(digits) > most:
        raise InputError(f"bad {key}: number too large to fit in target type")
    return int(digits)


def parse_query(dataset: str, query: bytes) -> Request:
    """What a client asks for. Raises InputError with a sentence for the client."""
    values = parameters(query)
    seed = _number(values, "seed", _U64)
    epochs = _number(values, "epochs", _U32)
    rank = _number(values, "rank", _U32)
    world_size = _number(values, "world_size", _U32)
    if (rank is None) != (world_size is None):
        raise InputError("rank and world_size must be specified together")
    return Request(
        dataset,
        0 if seed is None else seed,
        values.get(b"shuffle", "chunk-shuffled"),
        1 if epochs is None else epochs,
        _number(values, "sample", _U64),
        rank,
        world_size,
        _number(values, "skip", _U64),
        values.get(b"fingerprint"),
    )
