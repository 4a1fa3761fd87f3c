"""`index-perm`: one permutation of all records, by an index of where each lies. Needs a file that can be read anywhere.

Memory: 4 bytes a record for the permutation (8 from 2^32 records on) and the memory map of the index (8 bytes a record
for plain lines, 12 for seekable zstd), which the system may drop; and a batch of records: 64 MiB, and 20 bytes each.
From seekable zstd each frame that a batch touches is decoded once for it.

A position is a record number: starting anywhere costs nothing but the permutation.
"""

import mmap
import os
from array import array
from collections.abc import Iterator
from typing import Any

from shuflr import core
from shuflr._native import ffi, lib
from shuflr.errors import DataError
from shuflr.order.position import Block, Position
from shuflr.order.seeds import perm_key
from shuflr.records.pipeline import in_order
from shuflr.records.seekable import SeekableFile
from shuflr.records.sidecar import Index
from shuflr.records.sieve import Partition
from shuflr.records.source import LocalFile

_FIRST_BATCH, _BATCH = 1 << 20, 64 << 20  # bytes of a batch: the first, and at most
_MOST = 1 << 19  # records of a batch


class _Permuted:
    """The permutation of an epoch as C sees it, and the places that belong to a rank."""

    def __init__(self, seed: int, epoch: int, count: int, partition: Partition) -> None:
        self._numbers: array[int] = core.permutation(perm_key(seed, epoch), count)
        self.wide = self._numbers.itemsize == 8
        self.order = ffi.from_buffer(self._numbers) if count else ffi.NULL
        self.count = count
        self.rank, self.step = partition

    @property
    def mine(self) -> int:
        """How many records belong to the rank."""
        return len(range(self.rank, self.count, self.step))

    def place(self, record: int) -> int:
        """Where the rank's record-th record stands in the permutation."""
        return min(self.rank + record * self.step, self.count)


class _IndexPerm:
    """What both kinds of file share."""

    mode = "index-perm"
    replays = False

    def __init__(
        self, file: "LocalFile | SeekableFile", stamp: bytes, index: Index, seed: int, partition: Partition,
        threads: int,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.dropped = 0
        self.fingerprint = stamp
        self._name = file.name
        self._index = index
        self._partition = partition
        self._threads = threads

    @property
    def parameters(self) -> "dict[str, int]":
        return self._partition._asdict()

    def _pieces(self, permuted: _Permuted, first: int) -> "Iterator[tuple[Any, int]]":
        raise NotImplementedError

    def epoch(self, start: Position) -> Iterator[Block]:
        permuted = _Permuted(self.seed, start.epoch, self._index.count, self._partition)
        record = start.record
        for data, records in self._pieces(permuted, record):
            yield Block(data, Position(start.epoch, record), records)
            record += records


class PlainIndexPerm(_IndexPerm):
    """Over a file of plain lines, memory-mapped: the records of a batch are copied in the order they lie in the file,
    and the pages behind them given back, so that the memory held does not grow with the file."""

    def __init__(
        self, file: LocalFile, stamp: bytes, index: Index, seed: int, partition: Partition, threads: int = 1
    ) -> None:
        super().__init__(file, stamp, index, seed, partition, threads)
        self._file = file

    def _pieces(self, permuted: _Permuted, first: int) -> "Iterator[tuple[Any, int]]":
        if first >= permuted.mine:
            return
        mapped = mmap.mmap(self._file.fd, self._file.size, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        data = core.pointer(memoryview(mapped))
        starts, places = ffi.new("uint64_t[]", _MOST), ffi.new("uint64_t[]", _MOST + 1)
        by_window, taken = ffi.new("uint32_t[]", _MOST), ffi.new("size_t *")
        room, out = _FIRST_BATCH, bytearray()
        while first < permuted.mine:
            if os.fstat(self._file.fd).st_size < self._file.size:
                raise DataError(f"{self._name}: the file was cut short while it was read")
            status = lib.shuflr_map_plan(
                data, self._file.size, self._index.offsets, permuted.count, permuted.order, permuted.wide,
                permuted.place(first), permuted.count, permuted.step, room, _MOST, starts, places, by_window, taken,
            )  # fmt: skip
            core.check(status, self._name)
            n, size = int(taken[0]), int(places[taken[0]])
            if len(out) < size:
                out = bytearray(max(size, room))
            target = core.pointer(out)

            def gather(run: "tuple[int, int]", work: core.Work, target: Any = target) -> None:
                lib.shuflr_map_gather(data, self._file.size, starts, places, by_window, *run, target)

            share = -(-n // self._threads)
            for _ in in_order(((i, min(i + share, n)) for i in range(0, n, share)), gather, self._threads):
                pass
            del target, gather
            yield memoryview(out)[:size], n
            first += n
            room = min(2 * room, _BATCH)


class SeekableIndexPerm(_IndexPerm):
    """Over seekable zstd: batches that grow, and in each every frame it needs decoded once, in file order."""

    def __init__(
        self, file: SeekableFile, stamp: bytes, index: Index, seed: int, partition: Partition, threads: int = 1
    ) -> None:
        super().__init__(file, stamp, index, seed, partition, threads)
        self._file = file

    def _pieces(self, permuted: _Permuted, first: int) -> "Iterator[tuple[Any, int]]":
        places, planned = ffi.new("uint64_t[]", _MOST), ffi.new("uint64_t[]", _MOST)
        bytes_, room, out = ffi.new("uint64_t *"), _FIRST_BATCH, bytearray()
        entries = self._index.places
        while first < permuted.mine:
            at = permuted.place(first)
            n = lib.shuflr_entry_plan(
                entries, permuted.count, permuted.order, permuted.wide, at, permuted.count, permuted.step, room,
                _MOST, places, planned, bytes_,
            )  # fmt: skip
            if len(out) < bytes_[0]:
                out = bytearray(bytes_[0])
            self._fill(permuted, at, places, planned, n, out)
            size = lib.shuflr_entry_close(
                entries, permuted.order, permuted.wide, at, permuted.step, places, n, core.pointer(out)
            )
            yield memoryview(out)[:size], n
            first += n
            room = min(2 * room, _BATCH)

    def _fill(self, permuted: _Permuted, at: int, places: Any, planned: Any, n: int, out: bytearray) -> None:
        """Decodes each frame of a batch and copies its records to their places."""
        target = core.pointer(out)

        def runs() -> "Iterator[tuple[int, int]]":
            start = 0
            while start < n:
                end = lib.shuflr_entry_run(planned, n, start)
                yield start, end
                start = end

        def scatter(run: "tuple[int, int]", work: core.Work) -> None:
            frame = planned[run[0]] >> 32
            if frame >= self._file.frames:
                raise DataError(f"{self._name}: the index names frame {frame} of {self._file.frames}")
            content = self._file.decode(frame, work)
            status = lib.shuflr_entry_scatter(
                self._index.places, permuted.order, permuted.wide, at, permuted.step, places, planned, *run,
                core.pointer(content), len(content), target, len(out),
            )  # fmt: skip
            core.check(status, self._file.what(frame))

        for _ in in_order(runs(), scatter, self._threads):
            pass
