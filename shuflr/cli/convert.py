"""`shuflr convert`: any input as record-aligned seekable zstd."""

import argparse
from typing import Any

from shuflr import core
from shuflr.cli.options import COUNT, THREADS, add_common, add_seed, byte_size, log, number, seed_of, threads_of, whole
from shuflr.cli.output import Progress
from shuflr.records.atomic import AtomicFile
from shuflr.records.codecs import FORMATS, ChunkReader, Reader
from shuflr.records.filters import Filter, filtered
from shuflr.records.inputs import Input, read_chunks
from shuflr.records.seekable import SeekableFile
from shuflr.records.sieve import Limits, Partition, Sieve, whole_records
from shuflr.records.writer import FRAME_SIZE, LEVEL, write_seekable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", metavar="INPUT", help="a file, URL, parquet file or directory, hf://user/repo, saturate output, or -")
    add("-o", "--output", required=True, metavar="OUT", help="the file to write, or - for standard output")
    add("-l", "--level", type=whole(1, 22), default=LEVEL, metavar="N", help=f"1 to 22 (default {LEVEL})")
    add("-f", "--frame-size", type=_frame_size, default=FRAME_SIZE, metavar="SIZE", help="default 2MiB")
    add("-T", "--threads", type=THREADS, default=0, metavar="N", help="that compress; 0: one a processor (default)")
    add("--input-format", choices=FORMATS, default="auto", help="default auto: by the first bytes")
    add("--no-checksum", action="store_true", help="leave the checksums out")
    add("--no-record-align", action="store_true", help="cut frames at exactly the frame size")
    add("--verify", action="store_true", help="read the result back and compare it with its checksums")
    add("-n", "--limit", type=COUNT, metavar="N", help="stop after N records were kept")
    add("--sample-rate", type=number(0, 1), metavar="P", help="keep each record with this chance")
    add("--min-entropy", type=number(0, 8), metavar="BITS", help="keep records of at least this many bits a byte")
    add("--max-entropy", type=number(0, 8), metavar="BITS", help="keep records of at most this many bits a byte")
    add_seed(parser)
    add("--parquet-project", type=lambda text: text.split(","), metavar="A,B", help="the parquet columns to keep")
    add_common(parser)


def _frame_size(text: str) -> int:
    size = byte_size(text)
    if not 1 <= size <= core.FRAME_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a frame size from 1 to {core.FRAME_LIMIT} bytes")
    return size


def run(arguments: argparse.Namespace) -> int:
    reader = _reader(arguments)
    progress = Progress(arguments.progress, None, "convert")
    try:
        with AtomicFile(arguments.output) as output:
            table = write_seekable(
                reader,
                output.file,
                arguments.frame_size,
                arguments.level,
                not arguments.no_checksum,
                not arguments.no_record_align,
                threads_of(arguments.threads),
                progress.add,
            )
            if arguments.verify and arguments.output != "-":
                output.verify(read_back)
            output.commit()
    finally:
        progress.close()
    if arguments.verify and arguments.output == "-":
        log(arguments).warning("what went to standard output cannot be read back; --verify was left out")
    size = sum(decoded for _, decoded, _ in table)
    log(arguments).info("%s: %d frames, %d bytes", arguments.output, len(table), size)
    return 0


def _reader(arguments: argparse.Namespace) -> Reader:
    """The bytes to write: the input as it is, or the records that the filters keep."""
    reader = Input(arguments.input, arguments.input_format, columns=arguments.parquet_project).reader()
    rules = Filter(arguments.sample_rate, arguments.min_entropy, arguments.max_entropy, arguments.limit)
    if not rules.active:
        return reader
    everything = Sieve(Limits(core.UNBOUNDED, core.PASSTHROUGH), Partition())
    records = whole_records(read_chunks(reader), everything)
    return ChunkReader(filtered((block.data for block in records), rules, core.key_of_u64(seed_of(arguments))))


def read_back(path: str) -> None:
    """Decodes every frame of a file that was just written; raises DataError where it is not what it should be."""
    file = SeekableFile(path)
    work: Any = core.Work()
    for frame in range(file.frames):
        file.decode(frame, work)
    file.close()
