"""The seek table of the zstd seekable format: bytes in, table out. Pure.

It is the last, skippable, frame of the file: magic 0x184D2A5E, body size, N entries of compressed size, decompressed
size and (with checksums) checksum, each u32; then N, a descriptor byte and the seekable magic. Everything the file
says about itself is compared with the file before it is believed.
"""

import struct
import sys
from array import array
from itertools import accumulate
from typing import Callable, NamedTuple

from shuflr.errors import NotSeekable

SKIPPABLE_MAGIC = 0x184D2A5E
SEEKABLE_MAGIC = 0x8F92EAB1
FOOTER = struct.Struct("<IBI")  # frame count, descriptor, seekable magic
HEADER = struct.Struct("<II")  # skippable magic, body size
CHECKSUMS = 0x80
SMALLEST = HEADER.size + FOOTER.size


class SeekTable(NamedTuple):
    """Sizes and places of N frames. `offsets` has N+1 items: the last is where the data ends."""

    offsets: "array[int]"  # u64
    compressed: "array[int]"  # u32
    decompressed: "array[int]"  # u32
    checksums: "array[int]"  # u32; empty without checksums

    @property
    def frames(self) -> int:
        return len(self.compressed)

    @property
    def has_checksums(self) -> bool:
        return bool(self.checksums) or not self.compressed


def _words(data: bytes) -> "array[int]":
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def read_seek_table(size: int, read: Callable[[int, int], "bytes | memoryview"]) -> SeekTable:
    """The table of a file of `size` bytes, read with read(offset, length).

    Raises NotSeekable when there is none, or when it contradicts itself or the file."""
    if size < SMALLEST:
        raise NotSeekable("file too short to contain a seek table")
    frames, descriptor, magic = FOOTER.unpack(read(size - FOOTER.size, FOOTER.size))
    if magic != SEEKABLE_MAGIC:
        raise NotSeekable(f"not a zstd-seekable file: expected trailer magic {SEEKABLE_MAGIC:#x}, found {magic:#010x}")
    if descriptor & ~CHECKSUMS:
        raise NotSeekable("seekable descriptor has reserved bits set")
    width = 3 if descriptor & CHECKSUMS else 2
    start = size - (SMALLEST + 4 * width * frames)
    if start < 0:
        raise NotSeekable(f"impossible seek table: {frames} frames do not fit in {size} bytes")
    skippable, body = HEADER.unpack(read(start, HEADER.size))
    if skippable != SKIPPABLE_MAGIC:
        raise NotSeekable("seek table precedes unexpected magic; not a seekable file")
    if body != size - start - HEADER.size:
        raise NotSeekable(f"seek-table frame size mismatch: says {body}, is {size - start - HEADER.size}")
    words = _words(bytes(read(start + HEADER.size, 4 * width * frames)))
    compressed, decompressed = words[0::width], words[1::width]
    offsets = array("Q", accumulate(compressed, initial=0))
    if offsets[-1] != start:
        raise NotSeekable(f"impossible seek table: frames sum to {offsets[-1]} bytes, the file has {start} before it")
    if 0 in compressed:
        raise NotSeekable("impossible seek table: a frame of no bytes")
    return SeekTable(offsets, compressed, decompressed, words[2::3] if width == 3 else array("I"))


def encode_seek_table(table: "list[tuple[int, int, int]]", checksums: bool) -> bytes:
    """The seek-table frame for (compressed size, decompressed size, checksum) of each frame, in order."""
    width = 3 if checksums else 2
    words = array("I")
    for entry in table:
        words.extend(entry[:width])
    if sys.byteorder == "big":
        words.byteswap()
    body = words.tobytes() + FOOTER.pack(len(table), CHECKSUMS if checksums else 0, SEEKABLE_MAGIC)
    return HEADER.pack(SKIPPABLE_MAGIC, len(body)) + body
