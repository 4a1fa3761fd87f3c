"""What a client asks a server for, and the state that says how far it got. Pure.

A state is a plain dict: all that the sequence depends on, the fingerprint of the data, and how many records were
received. It is refused, with the difference, by a stream that would be another sequence.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union
from urllib.parse import quote, urlencode

from shuflr.errors import InputError, TokenError
from shuflr.wire import OpenStream

STATE_VERSION = 1
BATCH_RECORDS = 1024  # asked for; a server cuts them by bytes, and the public one at 4096 records
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1


class Sequence(NamedTuple):
    """One sequence of records of one dataset. epochs 0: endless. sample: records of each epoch at most."""

    dataset_id: str
    seed: int = 0
    shuffle: str = "chunk-shuffled"
    epochs: int = 1
    sample: Optional[int] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None

    def checked(self) -> "Sequence":
        """Itself. Raises TypeError, OverflowError or InputError, saying which value is wrong and what it may be."""
        bounds = {
            "seed": (self.seed, _U64), "epochs": (self.epochs, _U32), "sample": (self.sample, _U64),
            "rank": (self.rank, _U32), "world_size": (self.world_size, _U32),
        }  # fmt: skip
        for name, (value, most) in bounds.items():
            if value is None and name not in ("seed", "epochs"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} is a whole number, not {value!r}")
            if not 0 <= value <= most:
                raise OverflowError(f"{name} is 0 to {most}, not {value}")
        if not isinstance(self.shuffle, str):
            raise TypeError(f"shuffle is the name of an order, not {self.shuffle!r}")
        if self.rank is not None and self.world_size is None:
            raise InputError("rank requires world_size to be set")
        if self.world_size == 0:
            raise InputError("world_size is at least 1")
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise InputError(f"rank is {self.rank}, but must be below the world_size {self.world_size}")
        return self

    def cut(self) -> Optional[int]:
        """How many records of an epoch count at most: the count is compared after a record, so 0 gives one."""
        return None if self.sample is None or self.shuffle.partition(":")[0] == "reservoir" else max(self.sample, 1)


class Place(NamedTuple):
    """How far a sequence was received: records in all, those of the epoch that is under way, and of which data."""

    records: int = 0
    in_epoch: Optional[int] = 0  # None: not known, where epochs are not marked
    fingerprint: Optional[str] = None


def query(sequence: Sequence, place: Place) -> str:
    """The path and query of the stream over HTTP, in the public client's order."""
    pairs: list[tuple[str, Any]] = []
    if sequence.seed:
        pairs.append(("seed", sequence.seed))
    if sequence.epochs != 1:
        pairs.append(("epochs", sequence.epochs))
    pairs.append(("shuffle", sequence.shuffle))
    if sequence.sample is not None:
        pairs.append(("sample", sequence.sample))
    if sequence.rank is not None:
        pairs += [("rank", sequence.rank), ("world_size", sequence.world_size)]
    if place.records:
        pairs.append(("skip", place.records))
    if place.fingerprint:
        pairs.append(("fingerprint", place.fingerprint))
    return f"/v1/streams/{quote(sequence.dataset_id, safe='')}?{urlencode(pairs)}"


def opening(sequence: Sequence, place: Place, mode: Optional[str]) -> bytes:
    """The JSON of the stream in a wire hello."""
    return OpenStream(
        sequence.dataset_id, sequence.seed, sequence.shuffle, sequence.epochs, sequence.sample, sequence.rank,
        sequence.world_size if sequence.rank is not None else None, BATCH_RECORDS,
        skip=place.records or None, fingerprint=place.fingerprint, mode=mode,
    ).encode()  # fmt: skip


def state_of(sequence: Sequence, place: Place) -> "dict[str, Any]":
    """The state as a dict of plain values."""
    return {"version": STATE_VERSION, **sequence._asdict(), **place._asdict()}


def place_of(state: "Union[Mapping[str, Any], str]", sequence: Sequence) -> Place:
    """The place that a state, or its JSON text, names. Raises TokenError when it is the state of another sequence."""
    if isinstance(state, str):
        try:
            state = json.loads(state)
        except ValueError as error:
            raise TokenError(f"this is not the state of a stream: {error}") from None
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        raise TokenError(f"this is not the state of a stream: {str(state)[:80]}")
    differing = [
        f"{name} was {state.get(name)!r} and is {value!r}"
        for name, value in sequence._asdict().items()
        if state.get(name) != value
    ]
    if differing:
        raise TokenError(f"the state belongs to another stream: {'; '.join(differing)}")
    records, in_epoch, fingerprint = (state.get(name) for name in Place._fields)
    if not isinstance(records, int) or not 0 <= (in_epoch or 0) <= records:
        raise TokenError(f"the state's counts make no sense: {records!r} records, {in_epoch!r} of them in the epoch")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise TokenError(f"the state's fingerprint is a text, not {fingerprint!r}")
    return Place(records, in_epoch, fingerprint)
