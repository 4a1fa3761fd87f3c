"""What a server serves: files by name, each as it was when it was opened.

A client names a dataset, never a path. Every read is followed by a look at the file's identity, size and time before
its bytes go out, so a file that was replaced, cut or written over ends its streams with a sentence. Plain files are
never mapped: a mapped file that shrinks would kill the process.
"""

import os
import stat
import string
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Optional

from shuflr import core
from shuflr.errors import DatasetChanged, InputError, UnknownDataset
from shuflr.order.frame_pool import FramePool
from shuflr.order.index_perm import SeekableIndexPerm
from shuflr.order.modes import MODES, Options
from shuflr.order.position import Order, Position
from shuflr.order.sequential import Sequential
from shuflr.records.codecs import SNIFF, sniff
from shuflr.records.fingerprint import fingerprint
from shuflr.records.inputs import CHUNK, Input, as_seekable
from shuflr.records.seekable import SeekableFile
from shuflr.records.sidecar import Index, seekable_index
from shuflr.records.sieve import Limits, Partition
from shuflr.records.source import LocalFile
from shuflr.server.counts import Counts

_MEAN = 1024  # bytes of a record, as long as nobody has counted
_ID = frozenset(string.ascii_letters + string.digits + "._-")


def parse_spec(text: str) -> "tuple[str, str]":
    """`ID=PATH` as id and path. Raises InputError."""
    name, equals, path = text.partition("=")
    name = name.strip()
    if not equals or not name or not path:
        raise InputError(f"--dataset takes ID=PATH, not {text!r}")
    if not set(name) <= _ID:
        raise InputError(f"dataset id {name!r}: only letters, digits, dot, underscore and hyphen")
    return name, path


def _identity(status: os.stat_result) -> "tuple[int, int, int, int]":
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Dataset:
    """One served file. Any number of threads may read it.

    path: a regular file, else InputError. verify: compare checksums whenever a frame is decoded."""

    def __init__(self, name: str, path: str, verify: bool = True) -> None:
        self.id = name
        self.path = path
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"dataset {name}: {path} is not a regular file; `shuflr convert` makes one")
        self.file: Optional[SeekableFile] = as_seekable(path, verify)
        source = self.file.source if self.file is not None else LocalFile(path)
        assert isinstance(source, LocalFile)
        self._seen = _identity(source.status)
        self.size = source.size
        self.fingerprint = fingerprint(source)
        self.format = "seekable zstd" if self.file is not None else sniff(source.read(0, SNIFF))
        self.counts: Optional[Counts] = None
        self._verified = bytearray(0 if self.file is None else self.file.frames)
        self._guard = threading.Lock()
        self._built: Optional[Index] = None
        self._divided: dict[Partition, int] = {}
        if self.file is not None:
            self.counts = Counts(self.file)
        else:
            source.close()
        self.check()

    @property
    def label(self) -> str:
        """The fingerprint as clients see it."""
        return f"blake3:{self.fingerprint.hex()}"

    @property
    def frames(self) -> Optional[int]:
        """Frames of seekable zstd; None for other files."""
        return None if self.file is None else self.file.frames

    @property
    def content_size(self) -> Optional[int]:
        """Decoded bytes, where the file tells."""
        if self.file is not None:
            return sum(self.file.table.decompressed)
        return self.size if self.format == "plain" else None

    @property
    def read_seconds(self) -> float:
        """Spent waiting for frames to be read."""
        return self.file.source.read_seconds if self.file and isinstance(self.file.source, LocalFile) else 0.0

    @property
    def records(self) -> Optional[int]:
        """Its records, once they have been counted."""
        return None if self.counts is None else self.counts.total()

    def check(self) -> None:
        """Raises DatasetChanged when the file at the path is not the one that was opened, or was written to."""
        try:
            now = _identity(os.stat(self.path))
        except OSError as error:
            raise DatasetChanged(f"dataset changed: {self.id} cannot be found any more ({error.strerror})") from None
        if now != self._seen:
            raise DatasetChanged(
                f"dataset changed: the file of {self.id} was replaced or written to; reload the server to serve it"
            )

    def decode(self, frame: int, work: core.Work) -> memoryview:
        """The content of a frame. Its checksum is compared when the process decodes it for the first time; from then on
        `check`, which follows every read, stands for it. Raises DataError, DatasetChanged."""
        file = self._seekable()
        try:
            content = file.decode_unchecked(frame, work)
            if not self._verified[frame]:
                file.check(frame, content)
        except Exception:
            self.check()  # a change explains what could not be decoded
            raise
        self.check()
        self._verified[frame] = 1
        return content

    def order(self, mode: str, options: Options) -> Order:
        """An order through it that is not chunk-shuffled, on the file that is already open where it is seekable."""
        if mode == "index-perm":
            file = self._seekable()
            return SeekableIndexPerm(file, self.fingerprint, self._index(file), options.seed, options.partition)
        if mode == "frame-pool":
            return FramePool(self._seekable(), options.pool_size, options.seed, options.limits, options.partition)
        return MODES[mode](self.path, options)

    def _seekable(self) -> SeekableFile:
        if self.file is None:
            raise InputError(f"{self.id} is not seekable zstd")
        return self.file

    def _index(self, file: SeekableFile) -> Index:
        """Where each record lies, built once however many streams ask for it at the same time."""
        with self._guard:
            if self._built is None:
                self._built = seekable_index(file, threads=os.cpu_count() or 1)
            return self._built

    def held_by(self, mode: str, options: Options) -> int:
        """About how many bytes a stream in an order holds while it runs."""
        content = self.content_size or 4 * self.size
        mean = max(content // self.records, 1) if self.records else _MEAN
        records = content // mean + 1
        if mode in ("buffer", "reservoir"):
            kept = min(options.buffer_size if mode == "buffer" else options.reservoir_size, records)
            return kept * (mean + 80) + 4 * CHUNK
        frame = max(self.file.table.decompressed, default=0) if self.file is not None else 0
        if mode == "frame-pool":
            return options.pool_size * (frame + 12 * (frame // mean + 1)) + 8 * CHUNK
        if mode == "index-perm":
            return 4 * records + 2 * min(content, 64 << 20) + 20 * min(records, 1 << 19) + 2 * frame
        return 4 * CHUNK + 3 * frame

    def divided(self, mode: str, partition: Partition, sure: bool) -> Optional[int]:
        """How many records a rank gets where records are dealt out one by one; None when that is not known, unless it
        must be found out."""
        if self.counts is not None and not self.counts.missing and self.counts.whole_frames:
            return len(range(partition.rank, self.counts.sums()[-1], partition.world))
        if mode == "index-perm" and sure:
            return len(range(partition.rank, self._index(self._seekable()).count, partition.world))
        if mode == "index-perm":
            return None
        if sure and partition not in self._divided:
            order = Sequential(Input(self.path), 0, Limits(), partition)
            self._divided[partition] = sum(block.records for block in order.epoch(Position()))
            self.check()
        return self._divided.get(partition)

    def sequential_place(self, partition: Partition, epoch: int, skip: int) -> Position:
        """Where to start in input order for a rank's record `skip`: at its frame where frames end with records, else at
        the beginning."""
        if self.file is None or self.counts is None or self.counts.missing or not self.counts.whole_frames:
            return Position(epoch, skip, 0, skip)
        sums = self.counts.sums()
        frame = max(bisect_right(sums, partition.rank + skip * partition.world) - 1, 0)
        before = len(range(partition.rank, sums[frame], partition.world))
        offset = sum(self.file.table.decompressed[:frame])
        ordinal = sums[frame] if partition.world > 1 else 0
        return Position(epoch, skip, offset, skip - before, ordinal)


class Catalog:
    """The datasets by name. `reload` changes the list under running streams, which keep what they opened."""

    def __init__(self, datasets: "Iterable[tuple[str, str]]", verify: bool = True, count: bool = True) -> None:
        """datasets: (id, path). count: count the records of each in the background.

        Raises InputError for a name given twice, and the system's OSError for a path."""
        self._verify = verify
        self._stop = threading.Event()
        self._counter: Optional[threading.Thread] = None
        self._datasets = self._opened(list(datasets), {})
        if count:
            self.start_counting()

    def _opened(self, specs: "list[tuple[str, str]]", known: "dict[str, Dataset]") -> "dict[str, Dataset]":
        opened: dict[str, Dataset] = {}
        for name, path in specs:
            if name in opened:
                raise InputError(f"dataset id {name!r} is given twice")
            opened[name] = self._same(known.get(name), path) or Dataset(name, path, self._verify)
        return opened

    @staticmethod
    def _same(dataset: Optional[Dataset], path: str) -> Optional[Dataset]:
        """The dataset if it is of this path and unchanged."""
        if dataset is None or dataset.path != path:
            return None
        try:
            dataset.check()
        except DatasetChanged:
            return None
        return dataset

    def reload(self, datasets: "Iterable[tuple[str, str]]") -> None:
        """Serves this list from now on; files that did not change stay open. On an error the old list stays."""
        self._datasets = self._opened(list(datasets), self._datasets)
        if self._counter is not None:
            self.start_counting()

    def start_counting(self) -> None:
        """Counts records in the background from now on, one file after the other on a thread of low priority. Not
        before a process is forked, but in it."""
        self.close()
        self._stop = threading.Event()
        self._counter = threading.Thread(target=self._count, args=(self._stop,), name="shuflr-counts", daemon=True)
        self._counter.start()

    def _count(self, stop: threading.Event) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        for dataset in self:
            if dataset.counts is not None:
                dataset.counts.fill(stop)

    def close(self) -> None:
        """Ends the counting within one frame. Files close with the last stream that reads them."""
        self._stop.set()
        if self._counter is not None:
            self._counter.join()
            self._counter = None

    def __getitem__(self, name: str) -> Dataset:
        try:
            return self._datasets[name]
        except KeyError:
            raise UnknownDataset(f"unknown dataset: {name}") from None

    def __iter__(self) -> Iterator[Dataset]:
        return iter(list(self._datasets.values()))

    def __len__(self) -> int:
        return len(self._datasets)
