"""Who may hold a decoded block, and for how long: the server's memory, shared fairly among its streams.

A stream takes a lease for each block and gives it back when the block is sent. Leases are handed out in the order they
were asked for. When none is left, the one whose client has been keeping it waiting longest is taken back: its stream
makes the block again when it is asked for it next. So a stalled client costs a thread and no block, and what all
streams hold together is bounded, however many there are.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable, Optional

from shuflr import core
from shuflr.errors import Overloaded

# Blocks in hand at once beyond which more would only wait: enough to keep every processor decoding while as many
# sockets as that are being filled.
_BLOCKS, _BLOCKS_A_PROCESSOR = 32, 16
_STALLED = 0.05  # seconds without progress after which a block may be taken back
_GIVE_WAY = 1.0  # seconds that others wait before who holds memory from block to block gives it up
_IDLE = 5.0  # seconds after which unused memory is returned


def default_limit() -> int:
    """A quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class Lease:
    """The right to hold a block, and the memory that it lies in. The holder enters it to touch either; outside it may
    be taken back, after which `block` is None.

    lasting: held for more than one block. pinned: never taken back, because what it is for could only be made again
    from the beginning."""

    def __init__(self, need: int, lasting: bool, pinned: bool, block: core.BlockMemory) -> None:
        self.need = need
        self.lasting = lasting
        self.pinned = pinned
        self.block: Optional[core.BlockMemory] = block
        self.touched = time.monotonic()
        self.dropped: Optional[Callable[[], None]] = None  # called when it is taken back
        self._inside = threading.Lock()

    def __enter__(self) -> Optional[core.BlockMemory]:
        self._inside.acquire()
        return self.block

    def __exit__(self, *exception: object) -> None:
        self.touched = time.monotonic()
        self._inside.release()

    def take_back(self, before: float) -> Optional[core.BlockMemory]:
        """Its memory, if nobody has touched it since `before`; the lease is void then."""
        if self.pinned or self.touched > before or not self._inside.acquire(blocking=False):
            return None
        try:
            block, self.block = self.block, None
            if block is not None and self.dropped is not None:
                self.dropped()
            return block
        finally:
            self._inside.release()


class _Waiter:
    __slots__ = ("granted", "lasting", "lease", "need", "pinned", "since")

    def __init__(self, need: int, lasting: bool, pinned: bool) -> None:
        self.since = time.monotonic()
        self.need = need
        self.lasting = lasting
        self.pinned = pinned
        self.lease: Optional[Lease] = None
        self.granted = threading.Event()


class Memory:
    """The budget of a server process.

    limit: bytes that all blocks may hold together. One block is always granted, whatever it needs.
    blocks: how many leases for one block there may be at once (default: by the number of processors)."""

    def __init__(self, limit: Optional[int] = None, blocks: Optional[int] = None) -> None:
        self.limit = default_limit() if limit is None else limit
        self.blocks = blocks or _BLOCKS + _BLOCKS_A_PROCESSOR * (os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._leases: dict[Lease, None] = {}
        self._idle: list[tuple[core.BlockMemory, float]] = []  # last used last
        self._blocks = 0  # leases for one block
        self._leased = 0  # bytes
        self._pinned = 0  # of them, by leases that are never taken back
        self._unused = 0  # bytes of idle memory
        self._scratch: list[core.Work] = []  # of those who are not making a block, the last used last
        # Who has a turn makes and sends a block; with more than the processors can run, all would only be slower.
        self.turns = core.Gate((os.cpu_count() or 1) + 1)
        # Who sends from a file only calls the kernel. Two that take turns at that cost twice as much as one.
        self.direct_turns = core.Gate(1)

    @property
    def held(self) -> int:
        """Bytes of all blocks, with memory that is kept for the next ones."""
        return self._leased + self._unused

    @property
    def wanted(self) -> bool:
        """Whether somebody has been waiting long enough that who holds memory from block to block should give way."""
        with self._lock:
            return bool(self._waiting) and time.monotonic() - self._waiting[0].since > _GIVE_WAY

    def lease(self, need: int, lasting: bool = False, pinned: bool = False) -> Lease:
        """A lease for `need` bytes, once they are there; who has a turn gives it up while waiting for that. Raises
        Overloaded for a pinned one that does not fit."""
        waiter = _Waiter(need, lasting, pinned)
        with self._lock:
            if pinned:
                self._reserve(need)
            self._waiting.append(waiter)
            self._grant()
        if not waiter.granted.is_set():
            self.turns.leave()
            try:
                self._await(waiter)
            finally:
                self.turns.enter()
        assert waiter.lease is not None
        return waiter.lease

    def _await(self, waiter: _Waiter) -> None:
        """Until a lease is granted. Who waits longest looks whether one can be taken back."""
        while not waiter.granted.wait(_STALLED):
            with self._lock:
                if self._waiting and self._waiting[0] is waiter:
                    self._take_back()
                    self._grant()

    def _reserve(self, need: int) -> None:
        """Room for what will not be given back soon: of all such together, as much as leaves a quarter for the rest."""
        most = self.limit * 3 // 4
        if self._pinned + need > most:
            raise Overloaded(
                f"this order would hold about {need >> 20} MiB; {most - self._pinned >> 20} MiB of the server's memory"
                f" are left for such orders"
            )
        self._pinned += need

    def release(self, lease: Lease) -> None:
        """Gives a lease back, void or not."""
        with lease as block, self._lock:
            lease.block = None
            if lease in self._leases:
                self._end(lease, block)
            self._trim()
            self._grant()

    def trim(self) -> None:
        """Returns memory that nobody has used for a while."""
        with self._lock:
            self._trim()

    @contextmanager
    def making(self) -> Iterator[core.Work]:
        """A work area to make a block in, the one used last if it is free, whose memory is still in the cache."""
        try:
            work = self._scratch.pop()
        except IndexError:
            work = core.Work()
        yield work
        if work.size <= self.limit // 16:
            self._scratch.append(work)

    def _end(self, lease: Lease, block: Optional[core.BlockMemory]) -> None:
        del self._leases[lease]
        self._leased -= lease.need
        self._pinned -= lease.need if lease.pinned else 0
        self._blocks -= not lease.lasting
        if block is not None:
            self._idle.append((block, time.monotonic()))
            self._unused += block.size

    def _trim(self) -> None:
        before = time.monotonic() - _IDLE
        while self._idle and self._idle[0][1] < before:
            self._unused -= self._idle.pop(0)[0].size

    def _grant(self) -> None:
        """Serves those who wait, in their order, as far as it goes."""
        while self._waiting and (self._waiting[0].lasting or self._blocks < self.blocks):
            need = self._waiting[0].need
            if self._leases and self._leased + need > self.limit:
                return
            block = self._memory()
            while self._idle and self._leased + need + self._unused > self.limit:
                self._unused -= self._idle.pop(0)[0].size
            waiter = self._waiting.popleft()
            waiter.lease = Lease(need, waiter.lasting, waiter.pinned, block)
            self._blocks += not waiter.lasting
            self._leases[waiter.lease] = None
            self._leased += need
            waiter.granted.set()

    def _memory(self) -> core.BlockMemory:
        """The memory used last, which is warm, or new."""
        if not self._idle:
            return core.BlockMemory()
        block, _ = self._idle.pop()
        self._unused -= block.size
        return block

    def _take_back(self) -> None:
        """Ends the lease that has waited longest for its client, if one has waited long enough."""
        before = time.monotonic() - _STALLED
        for lease in sorted(self._leases, key=lambda lease: lease.touched):
            if lease.touched > before:
                return
            block = lease.take_back(before)
            if block is not None:
                self._end(lease, block)
                return
