"""`shuflr stream`: the records of one or several inputs to standard output."""

import argparse
import os
from collections.abc import Iterator
from typing import Any

from shuflr.cli.options import COUNT, THREADS, U32, add_common, add_seed, byte_size, log, seed_of, threads_of
from shuflr.cli.output import Progress, RecordOutput
from shuflr.errors import InputError
from shuflr.order.modes import BUFFER_SIZE, POOL_SIZE, RESERVOIR_SIZE, Options, open_order, parse_mode
from shuflr.order.position import START, Order, blocks
from shuflr.order.sequential import Sequential
from shuflr.records.sieve import MAX_LINE, POLICIES, Limits, Partition

_ONE_INPUT = ("chunk-shuffled", "index-perm", "frame-pool")
_ONE_PASS = ("none", "buffer", "reservoir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("inputs", nargs="*", metavar="INPUT", help="files, URLs, or - for standard input (the default)")
    add("-s", "--shuffle", default="chunk-shuffled", metavar="MODE",
        help="none, buffer, reservoir, chunk-shuffled (default), index-perm, frame-pool; or MODE:SIZE")  # fmt: skip
    add_seed(parser)
    add("-n", "--sample", type=COUNT, metavar="N", help="stop after N records in all")
    add("-e", "--epochs", type=U32, default=1, metavar="N", help="passes, each in its own order; 0: endless")
    add("--rank", type=U32, metavar="R", help="the part of the data to give, with --world-size")
    add("--world-size", type=U32, metavar="W", help="into how many parts the data is divided")
    add("--on-error", choices=tuple(POLICIES), default="skip", help="what to do with a record beyond --max-line")
    add("--max-line", type=byte_size, default=MAX_LINE, metavar="SIZE", help="default 16MiB")
    add("--buffer-size", type=COUNT, default=BUFFER_SIZE, metavar="N", help=f"default {BUFFER_SIZE}")
    add("--reservoir-size", type=COUNT, default=RESERVOIR_SIZE, metavar="N", help=f"default {RESERVOIR_SIZE}")
    add("--pool-size", type=COUNT, default=POOL_SIZE, metavar="K", help=f"frames of frame-pool; default {POOL_SIZE}")
    add("--build-threads", type=THREADS, default=0, metavar="N", help="that build an index; 0: one a processor")
    add("--emit-threads", type=THREADS, metavar="N",
        help="that decode; 0: one a processor (default 1 for chunk-shuffled and index-perm, else up to 2)")  # fmt: skip
    add("--emit-prefetch", type=COUNT, default=32, metavar="N", help="frames that may be ready ahead (default 32)")
    add("--verify", action=argparse.BooleanOptionalAction, default=True,
        help="compare each frame's checksum before its records go out (default)")  # fmt: skip
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.shuffle == "chunk-rr":
        log(arguments).error("chunk-rr exists in neither program; chunk-shuffled or frame-pool will do")
        return 69
    options = Options(
        seed=seed_of(arguments),
        limits=Limits(arguments.max_line, POLICIES[arguments.on_error]),
        partition=Partition.of(arguments.rank, arguments.world_size),
        buffer_size=arguments.buffer_size,
        reservoir_size=arguments.reservoir_size,
        pool_size=arguments.pool_size,
        verify=arguments.verify,
        threads=_threads(arguments),
        overlap=True,
        ahead=arguments.emit_prefetch,
        build_threads=threads_of(arguments.build_threads),
    )
    mode, options = parse_mode(arguments.shuffle, options)
    inputs = arguments.inputs or ["-"]
    if mode == "index-perm":
        log(arguments)  # an index that is stale or cannot be kept is a warning
    if mode in _ONE_INPUT and len(inputs) != 1:
        raise InputError(f"{mode} takes exactly one input, not {len(inputs)}")
    epochs = 1 if mode in _ONE_PASS else arguments.epochs
    # The count is compared after a record is out, so 0 gives one; a reservoir is a sample already.
    sample = None if arguments.sample is None or mode == "reservoir" else max(arguments.sample, 1)
    out = RecordOutput()
    progress = Progress(arguments.progress, _total(inputs), "stream")
    dropped = 0
    try:
        for path in inputs:
            order = open_order(path, mode, options)
            try:
                for data, records in _pieces(order, epochs, sample):
                    out.write(data)
                    progress.add(len(data))
                    if sample is not None:
                        sample -= records
            finally:
                dropped += order.dropped
            if sample == 0:
                break
    finally:
        progress.close()
        out.flush()
        if dropped:
            log(arguments).warning("%d records longer than --max-line %d were left out", dropped, arguments.max_line)
    return 0


def _threads(arguments: argparse.Namespace) -> int:
    """That decode. Where one cannot keep up with what it is decoded for, two do, if there are two processors."""
    if arguments.emit_threads is not None:
        return threads_of(arguments.emit_threads)
    return 1 if arguments.shuffle in ("chunk-shuffled", "index-perm") else min(2, threads_of(0))


def _pieces(order: Order, epochs: int, sample: "int | None") -> "Iterator[tuple[Any, int]]":
    """What goes out, and how many records that is (0 where nobody needs to know)."""
    if isinstance(order, Sequential) and sample is None:
        for records in order.bare(START):
            yield records.data, 0
        return
    for block in blocks(order, epochs, sample):
        yield block.data, 0 if sample is None else block.records


def _total(inputs: "list[str]") -> "int | None":
    """The bytes that will come out, where the size of a plain file tells."""
    if not all(os.path.isfile(path) and path.endswith((".jsonl", ".json", ".txt")) for path in inputs):
        return None
    return sum(os.path.getsize(path) for path in inputs)


