"""Whatever holds records, opened as chunks of decoded bytes: files, stdin, URLs, compressed or not, parquet.

A chunk is valid until the next is asked for.
"""

import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Optional

from shuflr.errors import InputError, NotSeekable
from shuflr.records.codecs import SNIFF, ChunkReader, Peeked, Reader, decoded, sniff
from shuflr.records.fingerprint import fingerprint
from shuflr.records.pipeline import in_order
from shuflr.records.seekable import SeekableFile
from shuflr.records.source import LocalFile, file_system, is_url, open_source

CHUNK = 1 << 20


def open_raw(path: str) -> Any:
    """A file-like object of the stored bytes: `-` is standard input, `scheme://` goes to fsspec.

    Raises FileNotFoundError, PermissionError or IsADirectoryError."""
    if path == "-":
        return sys.stdin.buffer.raw if hasattr(sys.stdin.buffer, "raw") else sys.stdin.buffer
    if is_url(path):
        files, inner = file_system(path)
        return files.open(inner, "rb")
    return open(path, "rb", buffering=0)


def read_chunks(reader: Reader, size: int = CHUNK) -> Iterator[memoryview]:
    """What a reader gives, in pieces of at most `size` bytes, all in one buffer."""
    buffer = memoryview(bytearray(size))
    while True:
        got = reader.readinto(buffer)
        if not got:
            return
        yield buffer[:got]


def as_seekable(path: str, verify: bool = True) -> Optional[SeekableFile]:
    """The file opened by its seek table, when it is local, zstd, and has one that can be believed."""
    if path == "-" or is_url(path) or not os.path.isfile(path):
        return None
    file = LocalFile(path)
    zstd = sniff(file.read(0, SNIFF)) == "zstd"
    file.close()
    if not zstd:
        return None
    try:
        return SeekableFile(path, verify)
    except NotSeekable:
        return None


def frames_in_order(file: SeekableFile, first: int = 0, threads: int = 1) -> Iterator[memoryview]:
    """The content of each frame from `first` on, checked. Threads decode ahead while this one checks and hands out."""
    frames = range(first, file.frames)
    for frame, content in zip(frames, in_order(frames, file.decode_unchecked, threads, threaded=True)):
        file.check(frame, content)
        yield content


class Input:
    """One input of records: a path, `-` for standard input, or a URL.

    form: one of codecs.FORMATS. verify: compare the checksums of seekable zstd. threads: for decoding its frames.
    columns: the projection of parquet input."""

    def __init__(
        self,
        path: str,
        form: str = "auto",
        verify: bool = True,
        threads: int = 1,
        columns: "Optional[list[str]]" = None,
    ) -> None:
        self.path = path
        self._form = form
        self._verify = verify
        self._threads = threads
        self._columns = columns
        if columns is not None and not is_parquet(path):
            raise InputError(f"{path}: only parquet input has columns to choose from")

    @property
    def fingerprint(self) -> bytes:
        """The 32 bytes that name this state of the file; zeros for what cannot be read twice or has no one file."""
        if self.path == "-" or self.path.startswith("hf://") or os.path.isdir(self.path):
            return bytes(32)
        source = open_source(self.path)
        try:
            return fingerprint(source)
        finally:
            source.close()

    def chunks(self, offset: int = 0) -> "Iterator[memoryview | bytes]":
        """The decoded bytes from `offset` on. A chunk is valid until the next is asked for.

        Plain local files and seekable zstd go there at once; other inputs are decoded up to there again.
        Raises InputError for a format that is not read; Truncated and DataError for damage, after all before it."""
        if is_tabular(self.path):
            return _from_offset(self._rows(), offset)
        if self._form in ("auto", "zstd"):
            file = as_seekable(self.path, self._verify)
            if file is not None:
                return self._frames(file, offset)
        return self._decoded(offset)

    def reader(self) -> Reader:
        """The decoded bytes as a reader, without a copy between where the format allows it."""
        seekable = as_seekable(self.path, self._verify) if self._form in ("auto", "zstd") else None
        if seekable is not None:
            return ChunkReader(self._frames(seekable, 0))
        if is_tabular(self.path):
            return ChunkReader(self._rows())
        return decoded(open_raw(self.path), self._form)

    def _rows(self) -> Iterator[bytes]:
        """The rows of a table as JSON lines."""
        if is_saturate_output(self.path):
            from shuflr.records.saturate_output import output_lines

            return output_lines(self.path)
        from shuflr.records.parquet import json_lines

        return json_lines(self.path, self._columns)

    def _frames(self, file: SeekableFile, offset: int) -> "Iterator[memoryview | bytes]":
        starts = list(accumulate(file.table.decompressed, initial=0))
        first = max(bisect_right(starts, offset) - 1, 0)
        return _from_offset(frames_in_order(file, first, self._threads), offset - starts[first])

    def _decoded(self, offset: int) -> "Iterator[memoryview | bytes]":
        raw = open_raw(self.path)
        try:
            reader = decoded(raw, self._form)
            if isinstance(reader, Peeked) and offset and self.path != "-" and not is_url(self.path):
                raw.seek(offset)
                yield from read_chunks(raw)
            else:
                yield from _from_offset(read_chunks(reader), offset)
        finally:
            if self.path != "-":
                raw.close()


def _from_offset(chunks: "Iterable[memoryview | bytes]", offset: int) -> "Iterator[memoryview | bytes]":
    """The chunks without their first `offset` bytes."""
    for chunk in chunks:
        if offset < len(chunk):
            yield memoryview(chunk)[offset:] if offset else chunk
        offset = max(offset - len(chunk), 0)


def is_saturate_output(path: str) -> bool:
    """Whether a local directory is the output of a saturate run: it holds a manifest or a journal."""
    return os.path.isdir(path) and any(os.path.isdir(os.path.join(path, name)) for name in ("_manifest", "_journal"))


def is_tabular(path: str) -> bool:
    """Whether an input holds rows, which become JSON lines, and not lines."""
    return is_saturate_output(path) or is_parquet(path)


def is_parquet(path: str) -> bool:
    """Whether an input is read as parquet: `*.parquet`, a directory that holds one, or a hub dataset."""
    if path.startswith("hf://") or path.endswith(".parquet"):
        return True
    return os.path.isdir(path) and any(name.endswith(".parquet") for name in os.listdir(path))


def require_local_file(path: str, mode: str) -> str:
    """The path, when `mode` can work on it at all: no stream, no directory."""
    if path == "-":
        raise InputError(f"{mode} needs a file, not standard input")
    return path


def open_plain(path: str, mode: str) -> LocalFile:
    """A local file of plain lines; InputError when it is compressed, behind a URL, or parquet."""
    if is_url(require_local_file(path, mode)) or is_tabular(path):
        raise InputError(f"{mode} needs a local file: plain lines, or the seekable zstd that `shuflr convert` makes")
    file = LocalFile(path)
    form = sniff(file.read(0, SNIFF))
    if form != "plain":
        file.close()
        raise InputError(f"{mode} cannot read {form} at an offset; run `shuflr convert {path} -o OUT.jsonl.zst` first")
    return file


def require_seekable(path: str, mode: str, verify: bool = True) -> SeekableFile:
    """The file opened by its seek table; InputError with the way out when it has none."""
    try:
        return SeekableFile(require_local_file(path, mode), verify)
    except NotSeekable as error:
        raise InputError(f"{mode} needs seekable zstd; run `shuflr convert {path} -o OUT.jsonl.zst` first ({error})")

