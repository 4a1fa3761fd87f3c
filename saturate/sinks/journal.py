"""The journal: every row that was taken, on a local disk before it is in a part.

A journal is a directory of segments. One segment holds the rows of one part, in the order received, and is named after
that part, so whoever turns it into the part, the writer or a later run, makes the same file: landing a segment twice
changes nothing. A segment is deleted once its part and the part's sidecar are durable.

Invariants:
* a segment has an exclusive flock before it has its name, and program and writer share it (one open file, whose
  descriptor is passed on): a segment whose lock can be taken has neither;
* a frame is its payload's length, its checksum and the payload. Reading ends at the first frame that is torn or does
  not match; whatever precedes it counts. A failed append is cut off again.

Appends are not fsynced: they survive the death of any process, and after a loss of power the rows since the last
flush may be paid for again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from saturate.sinks import layout

_FRAME = struct.Struct("<II")
# The CRC-32 starts from here rather than from 0, so that a run of zero bytes is not a run of empty frames.
_CHECKSUM_SEED = 0x53415455
_UNNAMED = ".new-"
_ATTEMPTS = 20  # to create a segment while others tidy up
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


@dataclass(frozen=True)
class Owner:
    """The process for which a segment is written: its rows are on their way as long as it or its writer lives."""

    pid: int
    started: str
    pid_space: str

    @classmethod
    def of(cls, pid: int) -> Owner:
        return cls(pid, _start_time(pid), _pid_space())

    def is_gone(self) -> bool:
        """Whether the process has certainly ended. False when it cannot be told, as from another container."""
        if self.pid_space != _pid_space():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        # The same number may have been given to another process since; a zombie has ended as well.
        return _start_time(self.pid) != self.started or _is_zombie(self.pid)


def _checksum(payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, _CHECKSUM_SEED)


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the command name; empty where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _start_time(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_zombie(pid: int) -> bool:
    return _stat_fields(pid)[:1] == ["Z"]


def _pid_space() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _lock(descriptor: int) -> None:
    """Take the segment's lock, which nobody else can hold yet. OSError with what to do if there are no locks here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise OSError(
                error.errno, "the file system of the journal has no flock; pass journal_dir= on a local disk"
            ) from error
        raise


class Segment:
    """One open segment, locked by this process or by the one that passed its descriptor on."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.size = size
        self.rows = 0

    @property
    def part(self) -> str:
        """The name of the part that this segment becomes."""
        name = layout.part_of_segment(os.path.basename(self.path))
        assert name is not None
        return name

    @classmethod
    def create(cls, directory: str, part: str, owner: Owner) -> Segment:
        """A new, empty segment for `part`. Raises OSError; nothing is left behind then."""
        for _ in range(_ATTEMPTS):
            try:
                return cls._created(directory, part, owner)
            except (FileNotFoundError, BlockingIOError):
                pass  # another program is just removing what it found empty or unlocked here (`remove_if_empty`)
        return cls._created(directory, part, owner)

    @classmethod
    def _created(cls, directory: str, part: str, owner: Owner) -> Segment:
        path = os.path.join(directory, layout.segment_of(part))
        unnamed = os.path.join(directory, _UNNAMED + uuid.uuid4().hex)
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        segment = cls(path, descriptor, 0)
        try:
            _lock(descriptor)
            segment._write([json.dumps(owner.__dict__).encode()])
            os.rename(unnamed, path)
        except BaseException:
            segment.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unnamed)
            raise
        return segment

    @classmethod
    def shared(cls, path: str, descriptor: int) -> Segment:
        """The segment that another process has created and locked, by the descriptor that it passed on."""
        return cls(path, descriptor, 0)

    @classmethod
    def adopt(cls, path: str) -> Segment | None:
        """The segment at `path` if nobody holds it and it is still there, now held by this process; else None."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return cls(path, descriptor, os.fstat(descriptor).st_size)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(descriptor)
                raise
        os.close(descriptor)
        return None

    def append(self, packed: list[bytes]) -> None:
        """Add rows. Raises OSError (disk full, ...), and then none of them is in the segment."""
        self._write(packed)
        self.rows += len(packed)

    def _write(self, payloads: Iterable[bytes]) -> None:
        data = memoryview(b"".join(piece for p in payloads for piece in (_FRAME.pack(len(p), _checksum(p)), p)))
        try:
            written = 0
            while written < len(data):
                written += os.write(self.descriptor, data[written:])
        except BaseException:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(data)

    def rename(self, part: str) -> None:
        """Become the segment of `part` instead. Raises OSError, and nothing has changed then."""
        path = os.path.join(os.path.dirname(self.path), layout.segment_of(part))
        os.rename(self.path, path)
        self.path = path

    def discard(self) -> None:
        """Delete the segment: its part is durable."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)


def read(path: str) -> tuple[Owner | None, list[bytes]]:
    """Whose segment it is and its rows, up to the first torn frame. (None, []) if not even the owner is legible."""
    with open(path, "rb") as file:
        data = memoryview(file.read())
    payloads: list[memoryview] = []
    position = 0
    while position + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + length]
        if len(payload) < length or _checksum(payload) != checksum:
            break
        payloads.append(payload)
        position += _FRAME.size + length
    if not payloads:
        return None, []
    return Owner(**json.loads(bytes(payloads[0]))), [bytes(payload) for payload in payloads[1:]]


def owner_of(path: str) -> Owner | None:
    """Whose segment it is; None if it is not there any more or not legible."""
    try:
        with open(path, "rb") as file:
            length, checksum = _FRAME.unpack(file.read(_FRAME.size))
            payload = file.read(length)
    except (OSError, struct.error):
        return None
    return Owner(**json.loads(payload)) if _checksum(payload) == checksum else None


def segments(directory: str) -> list[str]:
    """The paths of all segments in a journal, oldest first; empty if there is no such directory."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [os.path.join(directory, name) for name in sorted(names) if layout.part_of_segment(name)]


def remove_if_empty(directory: str) -> None:
    """Remove the journal directory after a clean end, and what a writer killed while it created a segment left."""
    try:
        for name in os.listdir(directory):
            if name.startswith(_UNNAMED):
                abandoned = Segment.adopt(os.path.join(directory, name))
                if abandoned is not None:
                    abandoned.discard()
        os.rmdir(directory)
    except OSError:
        pass
