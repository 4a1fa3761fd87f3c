"""A position as text that can be stored, and the refusal of one that belongs to another stream."""

import base64
import binascii
import json

from shuflr.errors import TokenError
from shuflr.order.position import Order, Position

_VERSION = 1


def _identity(order: Order) -> "dict[str, object]":
    return {
        "fingerprint": order.fingerprint.hex(),
        "seed": order.seed,
        "mode": order.mode,
        "parameters": order.parameters,
    }


def token_of(order: Order, position: Position) -> str:
    """The position as a token: URL-safe text that names the input, seed, mode, parameters, epoch and record."""
    content = {"version": _VERSION, **_identity(order), "position": list(position)}
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def position_of(token: str, order: Order) -> Position:
    """The position that a token names, if it is a token of this order. Raises TokenError, saying what differs."""
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        numbers = content["position"]
        position = Position(*numbers)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("not counts")
    except (ValueError, TypeError, KeyError, binascii.Error):
        raise TokenError("this is not a resume token") from None
    if content.get("version") != _VERSION:
        raise TokenError(f"the token is of version {content.get('version')}, this program reads {_VERSION}")
    names = {"fingerprint": "state of the input", "seed": "seed", "mode": "mode", "parameters": "set of parameters"}
    for name, value in _identity(order).items():
        if content.get(name) != value:
            raise TokenError(
                f"the token belongs to another {names[name]}: it has {content.get(name)}, this stream {value}"
            )
    return position
