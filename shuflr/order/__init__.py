"""Who comes next: each order is a pure function of (fingerprint, seed, mode, parameters, epoch, position).

`open_order` makes one, `blocks` runs it over epochs; `shuflr.order.token` writes down and reads back a place in it.
"""

from shuflr.order.modes import MODES, Options, open_order
from shuflr.order.position import Block, Order, Position, blocks

__all__ = [
    "MODES",
    "Block",
    "Options",
    "Order",
    "Position",
    "blocks",
    "open_order",
]
