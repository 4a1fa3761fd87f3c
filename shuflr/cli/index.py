"""`shuflr index`: builds the index that index-perm uses, whatever is there already."""

import argparse

from shuflr.cli.options import THREADS, add_common, log, threads_of
from shuflr.records.inputs import as_seekable, open_plain, require_local_file
from shuflr.records.sidecar import PLAIN, SEEKABLE, plain_index, seekable_index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file of plain lines, or seekable zstd")
    parser.add_argument("-o", "--output", metavar="PATH", help="default: beside the file")
    parser.add_argument("--threads", type=THREADS, default=0, metavar="N", help="that decode; 0: one a processor")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    log(arguments)
    seekable = as_seekable(require_local_file(arguments.file, "index"))
    if seekable is not None:
        path = arguments.output or arguments.file + SEEKABLE.suffix
        count = seekable_index(seekable, path, True, threads_of(arguments.threads)).count
    else:
        path = arguments.output or arguments.file + PLAIN.suffix
        count = plain_index(open_plain(arguments.file, "index"), path, True).count
    log(arguments).info("%s: %d records", path, count)
    return 0
