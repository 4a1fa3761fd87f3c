"""The seed tree: every key derives from the master seed by one BLAKE3 hash of a label and its indices. No chaining.

The labels `epoch`, `perm` and `frame` are those of the public program; `pool` is ours.
"""


def derive(seed: int, label: bytes, *indices: int) -> bytes:
    """The 32-byte key at a node of the tree of a 64-bit seed."""
    from blake3 import blake3

    message = b"shuflr-v1\0" + seed.to_bytes(8, "little") + b"\0" + label
    for index in indices:
        message += b"\0" + index.to_bytes(8, "little")
    return bytes(blake3(message).digest())


def perm_key(seed: int, epoch: int) -> bytes:
    """Orders the frames, or all the records, of an epoch."""
    return derive(seed, b"perm", epoch)


def frame_key(seed: int, epoch: int, frame: int) -> bytes:
    """Orders the records of a frame; `frame` is its place in the seek table."""
    return derive(seed, b"frame", epoch, frame)


def pool_key(seed: int, epoch: int, size: int, pool: int) -> bytes:
    """Orders the records of the pool-th pool of `size` frames."""
    return derive(seed, b"pool", epoch, size, pool)


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch for the orders that take a seed and not a key: the seed itself in epoch 0."""
    return seed if epoch == 0 else int.from_bytes(derive(seed, b"epoch", epoch)[:8], "little")
