"""One stream over as many connections as it takes. Its records arrive once each, in order, and it ends when the server
has said that it is complete: a stream that just stops is an error.

A connection that is lost is replaced by one that starts behind the last record received. A server that cannot start
there sends the stream from the beginning, and what was received before is dropped here.
"""

import logging
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from shuflr.client.address import Address
from shuflr.client.ahead import Line
from shuflr.client.connect import ConnectionLost, Reach
from shuflr.client.http_stream import HttpStream
from shuflr.client.pieces import End, EpochEnd
from shuflr.client.request import Place
from shuflr.client.request import Sequence as Wanted
from shuflr.client.wire_stream import WireStream
from shuflr.errors import StreamError

log = logging.getLogger("shuflr")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


class Feed:
    """The records of `wanted` from `place` on, from the first of the addresses that serves them.

    Opens the stream: raises StreamError when none does. max_reconnects: how often in a row."""

    def __init__(
        self, addresses: "Sequence[Address]", wanted: Wanted, place: Place, reach: Reach, max_reconnects: int
    ) -> None:
        self.place = place  # before the block that is taken next
        self.total: Optional[int] = None
        self.reconnects = 0
        self.waited = 0.0
        self._addresses = list(addresses)
        self._wanted = wanted
        self._reach = reach
        self._most = max_reconnects
        self._pid = os.getpid()
        self._received_before = 0
        self._line: Optional[Line] = None
        self._next_address = 0
        self._drop = 0  # records still to come that were received before
        self._seen = 0  # records before the next one that comes, and those of its epoch, where that is known
        self._in_epoch = 0
        self._in_epoch_known = True
        try:
            self._open()
        except ConnectionLost as busy:
            if not busy.wait:
                raise
            self._reopen(busy, 0)  # the server is there, and has said when to come again

    @property
    def received(self) -> int:
        """Bytes received over all connections."""
        return self._received_before + (self._line.connection.received if self._line is not None else 0)

    def blocks(self) -> "Iterator[list[bytes]]":
        """The records in lists, none empty. `place` is behind a list as soon as it has been given."""
        failures = 0
        while True:
            self._same_process()
            line = self._line
            if line is None:
                return
            began = time.monotonic()
            slot = line.take()
            self.waited += time.monotonic() - began
            try:
                if slot.error is not None:
                    raise slot.error
                records = self._taken(line, slot)
            except StreamError as error:
                self._hang_up()
                if not isinstance(error, ConnectionLost):
                    raise
                failures = self._reopen(error, failures)
                continue
            except BaseException:
                self._hang_up()
                raise
            if records:
                failures = 0
                yield records

    def _taken(self, line: Line, slot: Any) -> "list[bytes]":
        """What a slot adds to what was received."""
        if isinstance(slot.mark, End):
            self._finish(slot.mark)
            return []
        if isinstance(slot.mark, EpochEnd):
            self._end_epoch(slot.mark)
            return []
        records: list[bytes] = slot.piece.records()
        self._seen += len(records)
        epoch_before = self._in_epoch
        self._in_epoch += len(records)
        if self._drop:
            dropped = min(self._drop, len(records))
            self._drop -= dropped
            records = records[dropped:]
            epoch_before += dropped
        cut = None if line.connection.exact else self._wanted.cut()
        if cut is not None:
            records = records[: max(cut - epoch_before, 0)]
        in_epoch = self.place.in_epoch
        self.place = self.place._replace(
            records=self.place.records + len(records),
            in_epoch=None if in_epoch is None else in_epoch + len(records),
        )
        return records

    def _end_epoch(self, mark: EpochEnd) -> None:
        if self._in_epoch_known and mark.sent != self._in_epoch:
            raise ConnectionLost(f"{self._in_epoch} records came of an epoch of {mark.sent}")
        self._in_epoch, self._in_epoch_known = 0, True
        if not self._drop:
            self.place = self.place._replace(in_epoch=0)

    def _finish(self, mark: End) -> None:
        connection = self._line.connection if self._line is not None else None
        sampled = self._wanted.cut() is not None and connection is not None and not connection.exact
        if mark.sent is not None and not sampled and mark.sent != self._seen:
            raise ConnectionLost(f"{self._seen} records came of the {mark.sent} that were sent")
        if self._drop:
            raise StreamError(
                f"dataset changed: {self.place.records} records were received before, and the stream now has fewer"
            )
        self._hang_up()

    def _open(self) -> None:
        """Opens the first address that serves; remembers the last error of those that do not."""
        failure: Optional[StreamError] = None
        for turn in range(len(self._addresses)):
            address = self._addresses[(self._next_address + turn) % len(self._addresses)]
            try:
                self._start(address)
                self._next_address += turn
                return
            except StreamError as error:
                failure = error if failure is None or not isinstance(error, ConnectionLost) else failure
                if len(self._addresses) > 1:
                    log.warning("%s; trying the next address", error)
        assert failure is not None
        raise failure

    def _start(self, address: Address) -> None:
        kind = HttpStream if address.scheme.is_http else WireStream
        connection = kind(address, self._wanted, self.place, self._reach)
        known = self.place.fingerprint
        if known is not None and connection.fingerprint not in (None, known):
            connection.close()
            raise StreamError(
                f"dataset changed: {address.url} serves {connection.fingerprint} now, and the stream began with {known}"
            )
        self.place = self.place._replace(fingerprint=connection.fingerprint or known)
        if connection.total is not None:
            self.total = connection.total
        self._drop = connection.drop
        self._seen = self.place.records - connection.drop
        self._in_epoch_known, self._in_epoch = True, 0
        if connection.resumed_at:
            in_epoch = self._resumed_in_epoch()
            self.place = self.place._replace(in_epoch=in_epoch)
            self._in_epoch_known = in_epoch is not None
            self._in_epoch = max((in_epoch or 0) - connection.drop, 0)
        if not connection.marked and self._wanted.epochs != 1:
            self.place = self.place._replace(in_epoch=None)
        if not connection.exact and self._wanted.cut() is not None and not self._in_epoch_known:
            connection.close()
            raise StreamError(
                f"{address.url}: the server does not tell how long an epoch is, so the sample of the one under way "
                "cannot be completed here; go on over the transport that it was begun with"
            )
        self.transport = connection.transport
        self._line = Line(connection)

    def _resumed_in_epoch(self) -> Optional[int]:
        """How many records of its epoch lie before the place: at an epoch's end none of the next one, which the server
        begins with; None when that cannot be told."""
        in_epoch, cut, epochs = self.place.in_epoch, self._wanted.cut(), self._wanted.epochs
        if self.total is not None and epochs:
            return self.place.records % max(self.total // epochs, 1)
        if in_epoch is None or cut is None:
            return None  # it may be the last of its epoch
        return 0 if in_epoch >= cut else in_epoch

    def _reopen(self, error: ConnectionLost, failures: int) -> int:
        """Connects again after a loss; returns how many attempts were made in a row. Raises the loss when they are used
        up, or when a server that fell silent stays silent."""
        while True:
            if failures >= self._most:
                raise error
            pause = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE) * random.uniform(0.5, 1.0) if failures else 0.0
            time.sleep(max(pause, error.wait))
            failures += 1
            self.reconnects += 1
            self._next_address += 1 if failures > 1 else 0
            log.warning("%s; connecting again at record %d", error, self.place.records)
            try:
                self._open()
                return failures
            except ConnectionLost as again:
                if error.silent and again.silent:
                    raise again from error
                error = again

    def _same_process(self) -> None:
        if self._pid != os.getpid():
            raise StreamError(
                f"this iterator belongs to process {self._pid}, which opened its connection; iterate the Dataset "
                f"itself in process {os.getpid()}"
            )

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._received_before += line.connection.received
            line.close()

    def close(self) -> None:
        """Ends the stream. In a process that did not open it, only its copy of the descriptor."""
        self._hang_up()
