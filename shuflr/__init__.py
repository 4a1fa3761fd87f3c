"""Corpora far larger than memory, streamed to training workers in seed-deterministic shuffled order.

`Dataset` iterates a corpus that `shuflr serve` serves, `Mix` several by their weights. Importing this package starts
nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shuflr.client.dataset import Dataset
    from shuflr.client.mix import Mix

__all__ = ["Dataset", "Mix"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: the command line needs no client.
    if name == "Dataset":
        from shuflr.client.dataset import Dataset

        return Dataset
    if name == "Mix":
        from shuflr.client.mix import Mix

        return Mix
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
