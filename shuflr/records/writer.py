"""Writing record-aligned seekable zstd, with one thread or several: the same frames either way.

A frame is cut at the first 0x0A at or behind byte frame_size - 1, so where frames end depends on the bytes, not on how
they arrived or how many threads compress. Checksums are XXH64, as the format asks.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, Optional

from shuflr import core
from shuflr.errors import DataError, InputError
from shuflr.records.codecs import Reader
from shuflr.records.pipeline import in_order
from shuflr.records.seektable import encode_seek_table

FRAME_SIZE = 2 << 20
LEVEL = 3
_STEP = 1 << 16  # how much is read at most while the end of the last record is looked for


class Frames:
    """Cuts a stream into frame contents. Buffers circulate: `recycle` returns one that is no longer needed."""

    def __init__(self, frame_size: int = FRAME_SIZE, aligned: bool = True) -> None:
        if not 1 <= frame_size <= core.FRAME_LIMIT:
            raise InputError(f"frame size must be 1 to {core.FRAME_LIMIT} bytes, not {frame_size}")
        self._size = frame_size
        self._step = min(max(frame_size, 4096), _STEP)  # what is read beyond a frame is copied to the next one
        self._aligned = aligned
        self._free: list[bytearray] = []

    def recycle(self, content: memoryview) -> None:
        """Takes back the buffer of a frame that was cut here."""
        buffer = content.obj
        content.release()
        if isinstance(buffer, bytearray):
            self._free.append(buffer)

    def _buffer(self, room: int) -> bytearray:
        buffer = self._free.pop() if self._free else bytearray()
        if len(buffer) < room:
            buffer = bytearray(room)
        return buffer

    def cut(self, reader: Reader) -> Iterator[memoryview]:
        """The content of each frame. The last one gets the LF it lacks, when frames are aligned."""
        buffer = self._buffer(self._size + self._step)
        fill = searched = 0
        while True:
            room = self._size - fill if fill < self._size else self._step
            if fill + room > len(buffer):
                buffer.extend(bytes(max(len(buffer), room)))
            got = reader.readinto(memoryview(buffer)[fill : fill + room])
            if not got:
                break
            fill += got
            while fill >= self._size:
                end = self._end(buffer, fill, searched)
                if end == 0:
                    searched = fill
                    break
                following = self._buffer(max(self._size + self._step, fill - end + 1))
                following[: fill - end] = memoryview(buffer)[end:fill]
                yield memoryview(buffer)[:end]
                buffer, fill, searched = following, fill - end, 0
        if fill:
            if self._aligned and buffer[fill - 1] != 0x0A:
                if fill == len(buffer):
                    buffer.extend(b"\n")
                buffer[fill] = 0x0A
                fill += 1
            yield memoryview(buffer)[:fill]

    def _end(self, buffer: bytearray, fill: int, searched: int) -> int:
        """Where the frame that begins the buffer ends; 0 while that is not known."""
        if not self._aligned:
            return self._size
        end = buffer.find(b"\n", max(self._size - 1, searched), fill) + 1
        if end > core.FRAME_LIMIT or (end == 0 and fill > core.FRAME_LIMIT):
            raise DataError(f"a record does not fit in a frame: frames hold less than {core.FRAME_LIMIT + 1} bytes")
        return end


def write_seekable(
    reader: Reader,
    out: BinaryIO,
    frame_size: int = FRAME_SIZE,
    level: int = LEVEL,
    checksums: bool = True,
    aligned: bool = True,
    threads: int = 1,
    progress: Optional[Any] = None,
) -> "list[tuple[int, int, int]]":
    """Writes what a reader gives as seekable zstd; returns (compressed size, size, checksum) of each frame.

    level: 1 to 22. threads: how many compress, beside this one which reads and writes. progress: called with the
    number of content bytes of each frame written. Memory: about (threads + 3) frames."""
    if not 1 <= level <= 22:
        raise InputError(f"level must be 1 to 22, not {level}")
    frames = Frames(frame_size, aligned)

    def compress(content: memoryview, work: core.Work) -> "tuple[memoryview, memoryview, int]":
        compressed, checksum = work.compress(content, level)
        return content, compressed, checksum

    table = []
    for content, compressed, checksum in in_order(frames.cut(reader), compress, max(threads, 1), threaded=True):
        write_all(out, compressed)
        table.append((len(compressed), len(content), checksum))
        if progress is not None:
            progress(len(content))
        frames.recycle(content)
    write_all(out, encode_seek_table(table, checksums))
    return table


def write_all(out: BinaryIO, data: "bytes | memoryview") -> None:
    """Writes all of it to a raw file, however few bytes a call takes."""
    view = memoryview(data)
    while len(view):
        view = view[out.write(view) :]
