"""How many records each frame of a seekable file holds, learned once and kept beside it as `<file>.shuflr-counts`.

With them a server says how long a stream is, where its n-th record lies and what an epoch came to, without decoding.
The file: "SHUFLRCN" | version u8 = 1 | 7 zero bytes | fingerprint 32 | frames u64 | for each frame records u32 and
notes u32 | XXH3-64 of all before. Notes: how many records are longer than 16 MiB, and in the top bit whether the frame
ends without LF. A frame not counted yet has 2^32-1 records. A file that is damaged, or for another state of the data,
is made again.
"""

import fcntl
import logging
import struct
import sys
import threading
import time
from array import array
from itertools import accumulate
from typing import BinaryIO, Optional

from shuflr import core
from shuflr.records.atomic import AtomicFile
from shuflr.records.seekable import SeekableFile
from shuflr.records.sieve import MAX_LINE
from shuflr.records.writer import write_all

log = logging.getLogger("shuflr")

SUFFIX = ".shuflr-counts"
_MAGIC, _VERSION = b"SHUFLRCN", 1
_HEADER = struct.Struct("<8sB7x32sQ")
UNKNOWN = (1 << 32) - 1
_OPEN_END = 1 << 31
_KEEP_EVERY = 30.0  # seconds of counting that a kill may cost


class Counts:
    """The counts of one file. Any thread may ask or teach it."""

    def __init__(self, file: SeekableFile) -> None:
        self._file = file
        self._path = file.name + SUFFIX
        self._records = array("I", [UNKNOWN]) * file.frames
        self._notes = array("I", [0]) * file.frames
        self._known = 0
        self._sums: dict[bool, array[int]] = {}
        self._guard = threading.Lock()
        self._counting = threading.Lock()
        self._work = core.Work()
        self._load()

    @property
    def missing(self) -> int:
        """Frames not counted yet."""
        return self._file.frames - self._known

    def learn(self, frame: int, content: memoryview, records: int) -> None:
        """Takes over what somebody who decoded a frame found."""
        if self._records[frame] != UNKNOWN:
            return
        oversized = 0
        if len(content) > MAX_LINE:
            ends = core.record_ends(content)
            oversized = sum(1 for a, b in zip([0, *ends], [*ends, len(content)]) if b - a > MAX_LINE)
        open_end = len(content) > 0 and content[len(content) - 1] != 0x0A
        with self._guard:
            if self._records[frame] == UNKNOWN:
                self._notes[frame] = oversized | (_OPEN_END if open_end else 0)
                self._records[frame] = records
                self._known += 1

    def knows(self, frame: int) -> bool:
        """Whether a frame has been counted."""
        return self._records[frame] != UNKNOWN

    def records(self, frame: int) -> int:
        """All records of a frame; it is decoded if nobody did so before."""
        if self._records[frame] == UNKNOWN:
            self._count(frame)
        return self._records[frame]

    def kept(self, frame: int) -> int:
        """Records of a frame that are not beyond 16 MiB."""
        return self.records(frame) - (self._notes[frame] & ~_OPEN_END)

    def total(self, every: bool = False) -> Optional[int]:
        """All records of all frames that are not beyond 16 MiB, or every one; None while frames are not counted."""
        return None if self.missing else self.sums(every)[self._file.frames]

    def sums(self, every: bool = False) -> "array[int]":
        """For each frame the records before it, and behind them the total. All must be counted."""
        if every not in self._sums:
            beyond = (0 if every else notes & ~_OPEN_END for notes in self._notes)
            self._sums[every] = array("Q", accumulate(map(int.__sub__, self._records, beyond), initial=0))
        return self._sums[every]

    @property
    def whole_frames(self) -> bool:
        """Whether every frame ends with a record and none is beyond 16 MiB. All must be counted."""
        return not any(self._notes)

    @property
    def fragments(self) -> bool:
        """Whether any counted frame ends without LF."""
        return any(notes & _OPEN_END for notes in self._notes)

    def complete(self) -> None:
        """Counts here and now what nobody has counted yet."""
        for frame in range(self._file.frames if self.missing else 0):
            self.records(frame)

    def _count(self, frame: int) -> None:
        """One frame at a time, whoever asks: a thousand clients that come back at once cost one work area."""
        with self._counting:
            if self._records[frame] != UNKNOWN:
                return
            content = self._file.decode(frame, self._work)
            self._work.split(None)
            self.learn(frame, content, self._work.records)
            if not self.missing:
                self._work = core.Work()

    def fill(self, stop: threading.Event) -> None:
        """Counts what is missing until it is told to stop, and keeps it. Of several processes that serve the file one
        counts, and the others take over what it kept."""
        try:
            with open(self._file.name, "rb") as file:
                while self.missing and not _locked(file):
                    if stop.wait(1.0):
                        return
                if self.missing:
                    self._load()
                self._fill(stop)
        except Exception as error:
            log.warning("counting the records of %s stopped: %s", self._file.name, error)

    def _fill(self, stop: threading.Event) -> None:
        before, kept = self.missing, time.monotonic()
        try:
            for frame in range(self._file.frames if before else 0):
                if stop.is_set():
                    break
                self.records(frame)
                if time.monotonic() - kept > _KEEP_EVERY:
                    self._save()
                    kept = time.monotonic()
        finally:
            if self.missing < before:
                self._save()

    def _load(self) -> None:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_HEADER.size + 8 * self._file.frames + 9)
        except OSError:
            return
        size = _HEADER.size + 8 * self._file.frames
        if len(data) != size + 8 or core.xxh3(memoryview(data)[:size]) != int.from_bytes(data[size:], "little"):
            return
        magic, version, stamp, frames = _HEADER.unpack_from(data)
        if (magic, version, stamp, frames) != (_MAGIC, _VERSION, self._file.fingerprint, self._file.frames):
            return
        words = array("I", data[_HEADER.size : size])
        if sys.byteorder == "big":
            words.byteswap()
        with self._guard:
            for frame, (records, notes) in enumerate(zip(words[0::2], words[1::2])):
                if records != UNKNOWN and self._records[frame] == UNKNOWN:
                    self._notes[frame], self._records[frame] = notes, records
                    self._known += 1

    def _save(self) -> None:
        """Keeps what is known. A place that cannot be written costs the counting at the next start, not a stream."""
        with self._guard:
            words = array("I", bytes(8 * self._file.frames))
            words[0::2], words[1::2] = self._records, self._notes
        if sys.byteorder == "big":
            words.byteswap()
        data = _HEADER.pack(_MAGIC, _VERSION, self._file.fingerprint, self._file.frames) + words.tobytes()
        try:
            with AtomicFile(self._path) as output:
                write_all(output.file, data + core.xxh3(data).to_bytes(8, "little"))
                output.commit()
        except OSError as error:
            log.warning("cannot keep record counts at %s (%s); the next start counts again", self._path, error)


def _locked(file: BinaryIO) -> bool:
    """Whether this process is the one that counts the file, until it closes it; where files cannot be locked, it is."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
