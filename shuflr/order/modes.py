"""The modes by name, and an order made from a name, an input and options."""

import os
from typing import Callable, NamedTuple

from shuflr.errors import InputError
from shuflr.order.position import Order
from shuflr.records.fingerprint import fingerprint
from shuflr.records.inputs import Input, as_seekable, open_plain, require_local_file, require_seekable
from shuflr.records.sieve import Limits, Partition

BUFFER_SIZE = 100_000
RESERVOIR_SIZE = 10_000
POOL_SIZE = 64


class Options(NamedTuple):
    """What an order depends on beside its input. Sizes below 1 are refused."""

    seed: int = 0
    limits: Limits = Limits()
    partition: Partition = Partition()
    buffer_size: int = BUFFER_SIZE
    reservoir_size: int = RESERVOIR_SIZE
    pool_size: int = POOL_SIZE
    verify: bool = True
    threads: int = 1  # that decode and gather
    overlap: bool = False  # even one is beside the caller's, which shuffles: for who has a processor to spare
    ahead: int = 2  # blocks that may wait beyond those being made
    build_threads: int = 1  # that build an index


DEFAULTS = Options()


def _sequential(path: str, options: Options) -> Order:
    from shuflr.order.sequential import Sequential

    source = Input(path, verify=options.verify, threads=options.threads)
    return Sequential(source, options.seed, options.limits, options.partition)


def _buffer(path: str, options: Options) -> Order:
    from shuflr.order.slots import Buffer

    source = Input(path, verify=options.verify, threads=options.threads)
    size = _at_least_one("buffer", options.buffer_size)
    return Buffer(source, options.seed, size, options.limits, options.partition)


def _reservoir(path: str, options: Options) -> Order:
    from shuflr.order.slots import Reservoir

    source = Input(path, verify=options.verify, threads=options.threads)
    size = _at_least_one("reservoir", options.reservoir_size)
    return Reservoir(source, options.seed, size, options.limits, options.partition)


def _at_least_one(name: str, size: int) -> int:
    if size < 1:
        raise InputError(f"{name} size must be at least 1, not {size}")
    return size


def _chunk_shuffled(path: str, options: Options) -> Order:
    from shuflr.order.chunk_shuffled import ChunkShuffled

    file = require_seekable(path, "chunk-shuffled", options.verify)
    threads, ahead = options.threads, min(options.ahead, options.threads)
    return ChunkShuffled(file, options.seed, options.limits, options.partition, threads, ahead, options.overlap)


def _frame_pool(path: str, options: Options) -> Order:
    from shuflr.order.frame_pool import FramePool

    size = _at_least_one("frame pool", options.pool_size)
    file = require_seekable(path, "frame-pool", options.verify)
    return FramePool(file, size, options.seed, options.limits, options.partition, options.threads, options.overlap)


def _index_perm(path: str, options: Options) -> Order:
    from shuflr.order.index_perm import PlainIndexPerm, SeekableIndexPerm
    from shuflr.records.sidecar import plain_index, seekable_index

    seekable = as_seekable(require_local_file(path, "index-perm"), options.verify)
    rest = (options.seed, options.partition, options.threads)
    if seekable is not None:
        index = seekable_index(seekable, threads=options.build_threads)
        return SeekableIndexPerm(seekable, seekable.fingerprint, index, *rest)
    file = open_plain(path, "index-perm")
    return PlainIndexPerm(file, fingerprint(file), plain_index(file), *rest)


MODES: "dict[str, Callable[[str, Options], Order]]" = {
    "none": _sequential,
    "buffer": _buffer,
    "reservoir": _reservoir,
    "chunk-shuffled": _chunk_shuffled,
    "index-perm": _index_perm,
    "frame-pool": _frame_pool,
}

# The modes that take a size behind a colon, and how the options with that size are made.
_SIZED: "dict[str, Callable[[Options, int], Options]]" = {
    "buffer": lambda options, size: options._replace(buffer_size=size),
    "reservoir": lambda options, size: options._replace(reservoir_size=size),
    "frame-pool": lambda options, size: options._replace(pool_size=size),
}


def parse_mode(name: str, options: Options) -> "tuple[str, Options]":
    """`mode` or `mode:size` as the mode and the options with that size. Raises InputError for an unknown mode."""
    mode, colon, size = name.partition(":")
    if mode not in MODES:
        raise InputError(f"unknown shuffle mode {name!r}; there are {', '.join(MODES)}")
    if not colon:
        return mode, options
    if mode not in _SIZED or not size.isascii() or not size.isdigit():
        raise InputError(f"{name!r}: only {', '.join(_SIZED)} take a size, a whole number")
    return mode, _SIZED[mode](options, int(size))


def open_order(path: "str | os.PathLike[str]", mode: str = "chunk-shuffled", options: Options = DEFAULTS) -> Order:
    """The order `mode` (a name, or name:size) through the input at `path`.

    Raises InputError for a mode that is unknown or does not suit the input; OSError as the system does."""
    name, options = parse_mode(mode, options)
    if not 0 <= options.seed < 1 << 64:
        raise InputError(f"a seed is 0 to 2^64-1, not {options.seed}")
    return MODES[name](os.fspath(path), options)
