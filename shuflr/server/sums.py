"""What frames contribute to the checksums of the messages they travel in, summed up when they are first sent.

With it a raw frame goes from the page cache to the socket without passing through the process. The file is compared
with what it was, as on every read; should its bytes change all the same, the message that was cut or mixed does not
match its checksum and no client takes it.
"""

import threading
import weakref
from typing import Optional

from shuflr import core
from shuflr.server.catalog import Dataset

_LARGEST = 64 << 20  # frames beyond are read and hashed piece by piece each time


class _Made:
    """The sums of one dataset's frames."""

    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self.bytes = 0


class Sums:
    """The sums of frames of all datasets. limit: bytes they may take together, about a sixteenth of the frames'.

    Those of a dataset go with it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._made: weakref.WeakKeyDictionary[Dataset, _Made] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._making = threading.BoundedSemaphore(2)  # each reads a whole frame

    @property
    def held(self) -> int:
        """Bytes of all sums."""
        with self._lock:
            return sum(made.bytes for made in self._made.values())

    def of(self, dataset: Dataset, frame: int) -> Optional[bytes]:
        """The sums of a frame; None for one that is too short or too long for them, or when there is no room.

        Raises DatasetChanged."""
        with self._lock:
            made = self._made.setdefault(dataset, _Made())
        known = made.frames.get(frame)
        if known is not None:
            return known
        file = dataset.file
        assert file is not None
        if not 0 < file.table.compressed[frame] <= _LARGEST or self.held >= self.limit:
            return None
        with self._making:
            data = file.compressed(frame)
            dataset.check()
            fresh = core.frame_sums(data)
        if not fresh:
            return None
        with self._lock:
            if frame not in made.frames:
                made.frames[frame] = fresh
                made.bytes += len(fresh)
        return fresh
