"""Where each record of a file lies, kept beside it: `<file>.shuflr-idx` for plain lines, `<file>.shuflr-idx-zst` for
seekable zstd.

Both begin with a magic, version 1, the file's fingerprint and a count. Plain: count+1 u64 offsets. Seekable: count
entries of frame, offset in the frame and length, each u32. An index is used when its fingerprint is the file's;
whatever else is wrong with it means that it is built again. It is memory-mapped, so that 10^9 records cost pages of
the page cache and not memory of the process.
"""

import logging
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.errors import DataError, InputError
from shuflr.records.atomic import AtomicFile
from shuflr.records.fingerprint import fingerprint
from shuflr.records.inputs import CHUNK
from shuflr.records.pipeline import in_order
from shuflr.records.seekable import SeekableFile
from shuflr.records.source import LocalFile
from shuflr.records.writer import write_all

log = logging.getLogger("shuflr")

_HEADER = struct.Struct("<8sB7x32sQ")


class Kind(NamedTuple):
    """One of the two formats."""

    magic: bytes
    suffix: str
    width: int  # bytes of an entry
    extra: int  # entries beyond the count


PLAIN = Kind(b"SHUFLIDX", ".shuflr-idx", 8, 1)
SEEKABLE = Kind(b"SHUFLRZI", ".shuflr-idx-zst", 12, 0)


class Index:
    """A loaded index: `count` records, and the entries as C sees them."""

    def __init__(self, kind: Kind, count: int, memory: Any) -> None:
        self.kind = kind
        self.count = count
        self._memory = memory  # the mapping, kept alive as long as the entries are
        self.entries = ffi.from_buffer("uint8_t[]", memory) + _HEADER.size

    @property
    def offsets(self) -> Any:
        """Plain: count+1 offsets as `const uint64_t *`."""
        return ffi.cast("const uint64_t *", self.entries)

    @property
    def places(self) -> Any:
        """Seekable: the entries as `const shuflr_entry *`."""
        return ffi.cast("const shuflr_entry *", self.entries)


def _map(file: BinaryIO) -> Any:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def load_index(path: str, kind: Kind, expected: bytes) -> Optional[Index]:
    """The index at `path` if it is one of this kind for a file of this fingerprint; None otherwise.

    A stale one is named on the log."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size:
                return None
            magic, version, stored, count = _HEADER.unpack(head)
            size = _HEADER.size + kind.width * (count + kind.extra)
            if magic != kind.magic or version != 1 or os.fstat(file.fileno()).st_size != size:
                return None
            if stored != expected:
                log.warning("%s belongs to another state of its file; building it again", path)
                return None
            return Index(kind, count, _map(file))
    except OSError:
        return None


def _write(out: BinaryIO, kind: Kind, stamp: bytes, pieces: "Iterable[bytes | memoryview]") -> int:
    """Header and entries to an empty file, the count last, when it is known; returns the count."""
    write_all(out, _HEADER.pack(kind.magic, 1, stamp, 0))
    size = 0
    for piece in pieces:
        write_all(out, piece)
        size += len(piece)
    count = size // kind.width - kind.extra
    out.seek(0)
    write_all(out, _HEADER.pack(kind.magic, 1, stamp, count))
    return count


def _build(path: str, kind: Kind, stamp: bytes, pieces: "Callable[[], Iterable[bytes | memoryview]]") -> Index:
    """Builds an index at `path`; where that cannot be written, in an unnamed temporary file, with a warning."""
    try:
        with AtomicFile(path) as output:
            count = _write(output.file, kind, stamp, pieces())
            memory = _map(output.file)
            output.commit()
            return Index(kind, count, memory)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        log.warning("cannot keep the index at %s (%s); going on without", path, error)
    with tempfile.TemporaryFile(buffering=0) as scratch:
        count = _write(scratch, kind, stamp, pieces())
        return Index(kind, count, _map(scratch))


def _plain_offsets(file: LocalFile) -> "Iterator[bytes | memoryview]":
    """The offsets of a plain file, piece by piece, at reading speed."""
    if sys.byteorder == "big":
        raise InputError("indexes are memory-mapped little-endian numbers, which this machine does not read")
    yield bytes(8)
    chunk = bytearray(CHUNK)
    found = bytearray(8 * CHUNK)
    out, at = ffi.from_buffer("uint64_t[]", found), ffi.new("size_t *")
    base = last = 0
    while True:
        got = len(file.read_into(chunk, base, CHUNK))
        if got == 0:
            break
        at[0] = 0
        ends = lib.shuflr_find_ends(core.pointer(chunk), got, base, at, out, CHUNK)
        if ends:
            last = int(out[ends - 1])
            yield memoryview(found)[: 8 * ends]
        base += got
    if last != base:
        yield struct.pack("<Q", base)


def plain_index(file: LocalFile, path: Optional[str] = None, rebuild: bool = False) -> Index:
    """The index of a file of plain lines: the one beside it when it is current, else built and kept there.

    Memory: the map of 8 bytes a record, which the system may drop and read again."""
    stamp = fingerprint(file)
    path = path or file.name + PLAIN.suffix
    index = None if rebuild else load_index(path, PLAIN, stamp)
    index = index or _build(path, PLAIN, stamp, lambda: _plain_offsets(file))
    if index.offsets[index.count] > file.size:
        raise DataError(f"{path}: the index reaches beyond its file")
    return index


def seekable_index(
    file: SeekableFile, path: Optional[str] = None, rebuild: bool = False, threads: int = 1
) -> Index:
    """The same for seekable zstd: 12 bytes a record. Building decodes every frame once, with `threads`."""

    def entries() -> "Iterator[bytes]":
        def of_frame(frame: int, work: core.Work) -> bytes:
            file.decode(frame, work)
            return work.entries(frame)

        return in_order(range(file.frames), of_frame, threads)

    path = path or file.name + SEEKABLE.suffix
    index = None if rebuild else load_index(path, SEEKABLE, file.fingerprint)
    return index or _build(path, SEEKABLE, file.fingerprint, entries)
