"""`Dataset`: the records of a served corpus, in an order that the seed decides.

A Dataset is configuration until it is iterated: it pickles, copies and forks. An iterator belongs to the process that
made it.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Any, Optional, TypeVar, Union

from shuflr.client.address import parse_address
from shuflr.client.connect import Certificate, Reach
from shuflr.client.feed import Feed
from shuflr.client.request import Place, Sequence, place_of, state_of
from shuflr.errors import InputError
from shuflr.wire.opening import MODES

State = Union[Mapping[str, Any], str]
Item = TypeVar("Item")


class _Cursor:
    """A feed and how much of it the user has."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.first = feed.place.records  # records before those that this one gives
        self.block: list[bytes] = []
        self._rest: Iterator[bytes] = iter(())

    @property
    def left(self) -> int:
        """Records of the current block that the user does not have."""
        return length_hint(self._rest)

    @property
    def place(self) -> Place:
        place, left = self.feed.place, self.left
        # An epoch's end that was read behind the last block does not hide that the block is not over.
        in_epoch = None if place.in_epoch is None else max(place.in_epoch - left, 0)
        return place._replace(records=place.records - left, in_epoch=in_epoch)

    def records(self) -> Iterator[bytes]:
        try:
            for block in self.feed.blocks():
                self.block, self._rest = block, iter(block)
                yield from self._rest
        finally:
            self.feed.close()

    def batches(self, size: int) -> "Iterator[list[bytes]]":
        records = self.records()
        try:
            while batch := list(islice(records, size)):
                yield batch
        finally:
            records.close()  # type: ignore[attr-defined]


def _closing(iterator: "Iterator[Item]", feed: Feed) -> "Iterator[Item]":
    """The iterator, with whose end the feed ends even if it never began: a generator that did not begin cleans up
    nothing."""
    weakref.finalize(iterator, feed.close).atexit = False
    return iterator


_cursors: "weakref.WeakSet[_Cursor]" = weakref.WeakSet()


def _forked() -> None:
    """In a forked child: takes the records in hand from inherited iterators, so that each fails at its next step."""
    for cursor in list(_cursors):
        cursor.block.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Dataset:
    """The records of one served dataset, each as bytes without its LF.

    url: http, https, shuflr, shuflrs (`shuflr://HOST:PORT/ID`), shuflr+unix, http+unix (`shuflr+unix:///SOCKET/ID`). A
    list of them are fallbacks for one another: they serve the same data. The same bytes come over every one.
    seed, epochs (0: endless), shuffle, sample (records of each epoch): the sequence. rank, world_size: the part of it.
    auth_token: a bearer token. tls_ca_cert: a PEM file trusted instead of the system's authorities. client_cert: a PEM
    file with certificate and key, or a pair of files. timeout: seconds until a stream is open; read_timeout: of silence
    in one (default: 60). resume: a state of `state_dict()`, or its JSON text, to go on from. max_reconnects: attempts
    in a row after a connection is lost. mode: how a wire server should send them (raw-frame, plain-batch, zstd-batch).

    `iter(dataset)` opens a stream, from the beginning or, once, from the state that was loaded. Raises ValueError,
    TypeError or OverflowError for arguments that make no sense, and while iterating StreamError, an OSError.

    Read-only: dataset_id, url, transport, bytes_received."""

    def __init__(
        self,
        url: "Union[str, list[str], tuple[str, ...], None]" = None,
        *,
        seed: int = 0,
        epochs: int = 1,
        shuffle: str = "chunk-shuffled",
        sample: Optional[int] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        auth_token: Optional[str] = None,
        tls_ca_cert: Optional[str] = None,
        timeout: float = 30.0,
        urls: "Union[list[str], tuple[str, ...]]" = (),
        client_cert: Certificate = None,
        read_timeout: float = 60.0,
        resume: Optional[State] = None,
        max_reconnects: int = 10,
        mode: Optional[str] = None,
    ) -> None:
        given = [*([url] if isinstance(url, str) else url or ()), *urls]
        if not given:
            raise InputError("a Dataset needs a URL, as in Dataset('http://localhost:9000/corpus')")
        self._addresses = [parse_address(one) for one in given]
        ids = {address.dataset_id for address in self._addresses}
        if len(ids) > 1:
            raise InputError(f"URLs that stand in for one another name one dataset, not {', '.join(sorted(ids))}")
        if mode is not None and mode not in MODES:
            raise InputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        for name, value in (("timeout", timeout), ("read_timeout", read_timeout)):
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise TypeError(f"{name} is a number of seconds, not {value!r}")
            if not 0 < value < 1e9:
                raise InputError(f"{name} is a positive number of seconds, not {value!r}")
        dataset_id = self._addresses[0].dataset_id
        self._sequence = Sequence(dataset_id, seed, shuffle, epochs, sample, rank, world_size).checked()
        self._reach = Reach(auth_token, tls_ca_cert, client_cert, float(timeout), float(read_timeout), mode)
        self._max_reconnects = max_reconnects
        self._epoch: Optional[int] = None
        self._start: Optional[Place] = None
        self._cursor: Optional[_Cursor] = None
        self._total: Optional[int] = None
        if resume is not None:
            self.load_state_dict(resume)

    @property
    def dataset_id(self) -> str:
        return self._sequence.dataset_id

    @property
    def url(self) -> str:
        """The first URL, as given."""
        return self._addresses[0].url

    @property
    def transport(self) -> str:
        """How the records travel: http, https, shuflr-wire/1, shuflr-wire/1+tls, …"""
        return self._cursor.feed.transport if self._cursor is not None else self._addresses[0].scheme.transport

    @property
    def bytes_received(self) -> int:
        """Bytes of the streams that the last iterator received; 0 before there is one."""
        return self._cursor.feed.received if self._cursor is not None else 0

    def __repr__(self) -> str:
        return f"Dataset({self.url!r}, seed={self._sequence.seed}, shuffle={self._sequence.shuffle!r})"

    def __iter__(self) -> Iterator[bytes]:
        """Opens the stream and iterates it. Raises StreamError when it cannot be opened."""
        cursor = self._opened()
        return _closing(cursor.records(), cursor.feed)

    def iter_batches(self, size: int) -> "Iterator[list[bytes]]":
        """The same in lists of `size` records, the last one shorter: cheaper than one by one."""
        if size < 1:
            raise InputError(f"a batch has at least 1 record, not {size}")
        cursor = self._opened()
        return _closing(cursor.batches(size), cursor.feed)

    def _opened(self) -> _Cursor:
        sequence, place = self._sequence, self._start or Place()
        if self._epoch is not None:
            # One epoch of the sequence: the last of a stream that is that much longer.
            sequence = sequence._replace(epochs=self._epoch + 1)
            if self._start is None and self._epoch:
                place = self._epoch_begin(sequence)
        feed = Feed(self._addresses, sequence, place, self._reach, self._max_reconnects)
        self._start = None
        self._total = feed.total
        if feed.total is not None and self._epoch is not None:
            self._total = feed.total // sequence.epochs  # epochs are of one length, and one of them is given
        self._cursor = _Cursor(feed)
        _cursors.add(self._cursor)
        return self._cursor

    def _epoch_begin(self, sequence: Sequence) -> Place:
        """Where the last epoch of a sequence begins, by the length that the server tells."""
        feed = Feed(self._addresses, sequence, Place(), self._reach, self._max_reconnects)
        feed.close()
        if feed.total is None:
            raise InputError(f"{self.url}: the server does not tell how long an epoch is, so it cannot start at one")
        before = feed.total // sequence.epochs * (sequence.epochs - 1)
        return Place(before, 0, feed.place.fingerprint)

    def set_epoch(self, epoch: int) -> None:
        """Iterators made from now on give epoch `epoch` (from 0) of the sequence, and only that one."""
        if not isinstance(epoch, int) or epoch < 0:
            raise InputError(f"an epoch is a whole number from 0 on, not {epoch!r}")
        self._epoch = epoch
        self._start = None

    def state_dict(self) -> "dict[str, Any]":
        """How far the last iterator got, as plain values: what the user has received, not what was read ahead.
        Before there is an iterator, the state that was loaded, or that of the beginning."""
        if self._start is not None or self._cursor is None:
            place = self._start or Place()
        else:
            place = self._cursor.place
        return {**state_of(self._sequence, place), "epoch": self._epoch}

    def load_state_dict(self, state: State) -> None:
        """The next iterator, and only that one, goes on from a state. Raises TokenError (a ValueError) for the state of
        another sequence."""
        self._start = place_of(state, self._sequence)
        if isinstance(state, Mapping) and isinstance(state.get("epoch"), int):
            self._epoch = state["epoch"]

    def __len__(self) -> int:
        """Records of the whole stream, once a server has told. Raises TypeError while that is not known."""
        if self._total is None:
            raise TypeError(f"the length of {self.url} is not known before a stream of it is open")
        return self._total

    def __bool__(self) -> bool:
        return True

    def stats(self) -> "dict[str, Any]":
        """Of the last iterator: records given, bytes received, seconds waited for the server, reconnects."""
        cursor = self._cursor
        if cursor is None:
            return {"records": 0, "bytes_received": 0, "waited_s": 0.0, "reconnects": 0, "transport": self.transport}
        return {
            "records": cursor.place.records - cursor.first,
            "bytes_received": cursor.feed.received,
            "waited_s": cursor.feed.waited,
            "reconnects": cursor.feed.reconnects,
            "transport": cursor.feed.transport,
        }

    def __getstate__(self) -> "dict[str, Any]":
        """Configuration and place: connections stay with the process that made them."""
        state = dict(self.__dict__)
        if self._cursor is not None:
            state["_cursor"] = None
        return state
