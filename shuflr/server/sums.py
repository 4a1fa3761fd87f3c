"""What frames contribute to the checksums of the messages they travel in, summed up when they are first sent.

With it a raw frame goes from the page cache to the socket without passing through the process. The file is compared
with what it was, as on every read; should its bytes change all the same, the message that was cut or mixed does not
match its checksum and no client takes it.
"""

import threading
from typing import Optional

from shuflr import core
from shuflr.server.catalog import Dataset

_LARGEST = 64 << 20  # frames beyond are read and hashed piece by piece each time


class Sums:
    """The sums of frames of all datasets. limit: bytes they may take together, about a sixteenth of the frames'."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._lock = threading.Lock()
        self._making = threading.BoundedSemaphore(2)  # each reads a whole frame

    def of(self, dataset: Dataset, frame: int) -> Optional[bytes]:
        """The sums of a frame; None for one that is too short or too long for them, or when there is no room.

        Raises DatasetChanged."""
        found = dataset.sums.get(frame)
        if found is not None:
            return found
        file = dataset.file
        assert file is not None
        if self.held >= self.limit or not 0 < file.table.compressed[frame] <= _LARGEST:
            return None
        with self._making:
            data = file.compressed(frame)
            dataset.check()
            made = core.frame_sums(data)
        if not made:
            return None
        with self._lock:
            if frame not in dataset.sums:
                dataset.sums[frame] = made
                self.held += len(made)
        return made

    def forget(self, dataset: Dataset) -> None:
        """The dataset is not served any more."""
        with self._lock:
            self.held -= sum(map(len, dataset.sums.values()))
            dataset.sums.clear()
