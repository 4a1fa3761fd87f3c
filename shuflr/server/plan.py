"""A request and what it means for a dataset: how long it is, and where its n-th record lies. No memory, no bytes.

Positions count records as if nobody had stopped, so that a resumed stream has the numbers of an uninterrupted one.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from shuflr import core
from shuflr.errors import DatasetChanged, InputError
from shuflr.order.modes import Options, parse_mode
from shuflr.order.position import Position
from shuflr.order.seeds import perm_key
from shuflr.records.sieve import Partition
from shuflr.server.catalog import Catalog, Dataset
from shuflr.wire import MAX_PAYLOAD, RawFrame

_KNOWN_EPOCHS = 64  # epochs beyond which nobody adds up ranks of different length


class Request(NamedTuple):
    """What a client asks for. epochs 0: endless. sample: records of each epoch. skip: records of the whole stream that
    it has already. fingerprint: what the dataset must be."""

    dataset: str
    seed: int = 0
    shuffle: str = "chunk-shuffled"
    epochs: int = 1
    sample: Optional[int] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None
    skip: Optional[int] = None
    fingerprint: Optional[str] = None


class Plan:
    """A request that can be served: its dataset, its order, and the place to start at.

    Raises UnknownDataset, DatasetChanged, and InputError for what cannot be served."""

    def __init__(self, catalog: Catalog, request: Request) -> None:
        self.request = request
        self.raw = False  # stored frames travel, so records beyond 16 MiB are among those that count
        self.dataset: Dataset = catalog[request.dataset]
        self.mode, options = parse_mode(request.shuffle, Options(seed=request.seed))
        self.partition = self._partition(request)
        self.options = options._replace(partition=self.partition)
        if request.fingerprint not in (None, self.dataset.label):
            raise DatasetChanged(
                f"dataset changed: {request.dataset} is {self.dataset.label} here, not {request.fingerprint}"
            )
        self.dataset.check()
        # The count is compared after a record is out, so 0 gives one; a reservoir is a sample already.
        sampled = request.sample is not None and self.mode != "reservoir"
        self.sample = max(request.sample or 0, 1) if sampled else core.UNBOUNDED

    @staticmethod
    def _partition(request: Request) -> Partition:
        if request.rank is None:
            return Partition()
        return Partition.of(request.rank, request.world_size)

    @property
    def can_be_raw(self) -> bool:
        """Whether stored frames could travel as they are."""
        file = self.dataset.file
        if self.mode != "chunk-shuffled" or file is None:
            return False
        return max(file.table.compressed, default=0) + RawFrame.HEAD.size <= MAX_PAYLOAD

    def has(self, epoch: int) -> bool:
        """Whether there is such an epoch."""
        return self.request.epochs == 0 or epoch < self.request.epochs

    @property
    def unsuited(self) -> Optional[InputError]:
        """What is wrong when the order needs another kind of file."""
        if self.mode in ("chunk-shuffled", "frame-pool", "index-perm") and self.dataset.file is None:
            return InputError(f"{self.mode} needs seekable zstd, and {self.dataset.id} is {self.dataset.format}")
        return None

    def frames(self, epoch: int) -> Any:
        """The frames of an epoch in their order, 4 bytes each."""
        file = self.dataset.file
        assert file is not None
        order = core.permutation(perm_key(self.request.seed, epoch), file.frames)
        return order[self.partition.rank :: self.partition.world] if self.partition.world > 1 else order

    @property
    def by_frames(self) -> bool:
        """Whether ranks divide frames, so that their epochs differ in length, and not records."""
        return self.mode in ("chunk-shuffled", "frame-pool")

    def epoch_records(self, epoch: int) -> Optional[int]:
        """How many records an epoch gives; None where that is not known yet."""
        if self.unsuited is not None:
            return None
        total = self._by_frames(epoch) if self.by_frames else self.dataset.divided(self.mode, self.partition, False)
        return None if total is None else self._limited(total)

    def _by_frames(self, epoch: int) -> Optional[int]:
        counts = self.dataset.counts
        assert counts is not None
        if counts.missing or self.partition.world == 1:
            return counts.total(self.raw)
        sums = counts.sums(self.raw)
        return sum(int(sums[frame + 1] - sums[frame]) for frame in self.frames(epoch))

    def _limited(self, total: int) -> int:
        """What is given of an epoch's records."""
        return min(total, self.options.reservoir_size) if self.mode == "reservoir" else min(total, self.sample)

    def _size(self, epoch: int, skip: int) -> int:
        """How many records an epoch gives, or any number above `skip` if it is more: found out now, if need be, and no
        further than that."""
        known = self.epoch_records(epoch)
        if known is not None:
            return known
        if not self.by_frames:
            return self._limited(self.dataset.divided(self.mode, self.partition, True) or 0)
        total = 0
        for _, here in self.counted(self.frames(epoch)):
            total += here
            if total > skip or total >= self.sample:
                break
        return self._limited(total)

    def counted(self, frames: Any) -> "Iterator[tuple[int, int]]":
        """Frames, and the records that a stream gives of each; what nobody has counted yet is decoded."""
        counts = self.dataset.counts
        assert counts is not None
        count = counts.records if self.raw else counts.kept
        for frame in frames:
            yield frame, count(frame)

    @property
    def _alike(self) -> bool:
        """Whether all epochs have as many records."""
        return self.partition.world == 1 or not self.by_frames

    @property
    def total_records(self) -> Optional[int]:
        """Records of the whole stream, where they are known and it has an end."""
        epochs, first = self.request.epochs, self.epoch_records(0)
        if epochs == 0 or first is None or not (self._alike or epochs <= _KNOWN_EPOCHS):
            return None
        return first * epochs if self._alike else sum(self.epoch_records(epoch) or 0 for epoch in range(epochs))

    def start(self) -> "tuple[int, int, Optional[int]]":
        """Where the stream starts: the epoch, how many records of it are skipped, and how many of the whole stream.

        None where the server cannot skip any, because the file was not cut at records: fragments run on into each other
        and cannot be counted ahead. The client then drops what it has."""
        skip, counts = self.request.skip, self.dataset.counts
        if not skip:
            return 0, 0, skip
        epoch, rest = self._place_of(skip)
        if self.by_frames and not self.raw and counts is not None and counts.fragments:
            return 0, 0, None
        return epoch, rest, skip

    def _place_of(self, skip: int) -> "tuple[int, int]":
        """The epoch that holds the record behind `skip` others, and how many of those are in it."""
        epoch = 0
        while skip and self.has(epoch):
            size = self._size(epoch, skip)
            if size > skip or (size == 0 and self.request.epochs == 0):
                break
            passed = 1
            if self._alike and size:
                passed = min(skip // size, (self.request.epochs or core.UNBOUNDED) - epoch)
            epoch, skip = epoch + passed, skip - passed * size
        return epoch, skip


def frame_place(plan: Plan, epoch: int, frames: Any, skip: int) -> Position:
    """The place of a record of an epoch of chunk-shuffled."""
    record = 0
    for unit, (_, here) in enumerate(plan.counted(frames)):
        if record + here > skip:
            return Position(epoch, skip, unit, skip - record)
        record += here
    return Position(epoch, record, len(frames))
