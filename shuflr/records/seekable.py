"""Reading a seekable zstd file frame by frame. Opening costs the seek table and nothing else.

Checksums: a file whose checksums are XXH64 (the format's own, and ours) or FNV-1a (what the public program writes) is
compared on every read; which of the two it is shows at the first frame that agrees.
"""

from typing import Any, Optional

from shuflr import core
from shuflr._native import ffi
from shuflr.errors import NotSeekable
from shuflr.records.fingerprint import fingerprint
from shuflr.records.seektable import SeekTable, read_seek_table
from shuflr.records.source import LocalFile, Path, RemoteFile, open_source


class SeekableFile:
    """An open seekable zstd file. Any number of threads may read from it, each with a `Work` of its own.

    verify: compare checksums on every read (False: trust the bytes).
    Raises NotSeekable for a file without a believable seek table."""

    def __init__(self, path: Path, verify: bool = True) -> None:
        self.source: LocalFile | RemoteFile = open_source(path)
        self.name = self.source.name
        self.verify = verify
        try:
            self.table: SeekTable = read_seek_table(self.source.size, self.source.read)
        except NotSeekable as error:
            self.source.close()
            raise NotSeekable(f"{self.name}: {error}") from None
        self._kind = core.XXH64
        self._fingerprint: Optional[bytes] = None

    @property
    def frames(self) -> int:
        return self.table.frames

    @property
    def fingerprint(self) -> bytes:
        """The file's 32-byte fingerprint as of its opening."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.source)
        return self._fingerprint

    @property
    def checksum_kind(self) -> int:
        """core.XXH64 or core.FNV1A: the kind that agreed last (XXH64 before anything was read)."""
        return self._kind

    def what(self, frame: int) -> str:
        """How a message names a frame."""
        return f"{self.name}: frame {frame} at byte {self.table.offsets[frame]}"

    def compressed(self, frame: int) -> "bytes | memoryview":
        """The stored bytes of a frame."""
        return self.source.read(self.table.offsets[frame], self.table.compressed[frame])

    def _stored(self, frame: int, work: core.Work) -> memoryview:
        """The same in the work area's read buffer."""
        return self.source.read_into(
            work.room(self.table.compressed[frame]), self.table.offsets[frame], self.table.compressed[frame]
        )

    def decode(self, frame: int, work: core.Work) -> memoryview:
        """The content of a frame, checked; valid until the work area's next use. Raises DataError."""
        content = self.decode_unchecked(frame, work)
        self.check(frame, content)
        return content

    def decode_unchecked(self, frame: int, work: core.Work) -> memoryview:
        """The content of a frame before its checksum was compared: whoever hands it out does that first."""
        return work.decode(self._stored(frame, work), self.table.decompressed[frame], what=self.what(frame))

    def check(self, frame: int, content: memoryview) -> None:
        """Compares the content of a frame with its checksum, if it has one and is to be compared. Raises DataError."""
        if self.verify and self.table.checksums:
            self._kind = core.checked(content, self.table.checksums[frame], self._kind, self.what(frame))

    def place(self, frame: int, work: core.Work, target: Any) -> None:
        """Decodes a frame into C memory that has room for it, unchecked."""
        work.decode_into(self._stored(frame, work), target, self.table.decompressed[frame], self.what(frame))

    def placed(self, frame: int, work: core.Work, target: Any, base: int) -> memoryview:
        """Checks a frame that was placed there; returns where its records end, as 64-bit numbers counted from `base`: a
        view that is valid until the work area's next use."""
        size = self.table.decompressed[frame]
        content = memoryview(ffi.buffer(target, size)) if size else memoryview(b"")
        self.check(frame, content)
        return work.ends(content, base)

    def shuffled(
        self,
        frame: int,
        key: Optional[bytes],
        work: core.Work,
        first: int = 0,
        limit: int = core.UNBOUNDED,
        prefix: bool = False,
        max_line: int = core.UNBOUNDED,
        policy: int = core.PASSTHROUGH,
    ) -> memoryview:
        """The records of a frame in the order of its key as one block, checked, from record `first` on.

        Raises DataError, and OversizedRecord (with what precedes it in `work.block`) under the policy to fail."""
        checked = self.verify and bool(self.table.checksums)
        kind = work.frame(
            self._stored(frame, work), self.table.decompressed[frame], self.table.checksums[frame] if checked else 0,
            self._kind if checked else core.UNCHECKED, key, first, limit, prefix, max_line, policy, self.what(frame),
        )  # fmt: skip
        if checked:
            self._kind = kind
        return work.block

    def close(self) -> None:
        self.source.close()

    def __reduce__(self) -> "tuple[type[SeekableFile], tuple[str, bool]]":
        return SeekableFile, (self.name, self.verify)
