"""The JSON inside the hellos: what a client opens, and what a server opened.

As strict as the public program: an unknown field is ignored, a repeated or wrongly typed one refused. `skip`,
`fingerprint` and `mode` of a request and `resumed_at`, `skip_in_frame` and `total_records` of an answer are ours; the
public program ignores the former and never sends the latter.
"""

import json
from typing import Any, NamedTuple, Optional

from shuflr.wire.messages import MODE_PLAIN, MODE_RAW, MODE_ZSTD, WireError

U32, U64 = (1 << 32) - 1, (1 << 64) - 1

MODES = {"raw-frame": MODE_RAW, "zstd-batch": MODE_ZSTD, "plain-batch": MODE_PLAIN}


class _Field(NamedTuple):
    most: Optional[int]  # the largest whole number; None for a string
    nullable: bool


_FIELDS = {
    "dataset_id": _Field(None, False),
    "seed": _Field(U64, False),
    "shuffle": _Field(None, False),
    "epochs": _Field(U32, True),
    "sample": _Field(U64, True),
    "rank": _Field(U32, True),
    "world_size": _Field(U32, True),
    "max_batch_records": _Field(U32, False),
    "client_id": _Field(None, True),
    "skip": _Field(U64, True),
    "fingerprint": _Field(None, True),
    "mode": _Field(None, True),
}


def _checked(name: str, value: Any) -> Any:
    field = _FIELDS[name]
    if value is None and field.nullable:
        return None
    if field.most is None:
        if not isinstance(value, str):
            raise WireError(f"open_stream: {name} is a string, not {json.dumps(value)[:80]}")
    elif type(value) is not int or not 0 <= value <= field.most:
        raise WireError(f"open_stream: {name} is a whole number from 0 to {field.most}, not {json.dumps(value)[:80]}")
    return value


def _no_duplicates(pairs: "list[tuple[str, Any]]") -> "dict[str, Any]":
    seen = dict(pairs)
    if len(seen) != len(pairs):
        names = [name for name, _ in pairs]
        twice = [name for name in seen if names.count(name) > 1 and name in _FIELDS]
        if twice:
            raise WireError(f"open_stream: {twice[0]} is given twice")
    return seen


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _parsed(data: bytes, what: str) -> "dict[str, Any]":
    """A JSON object out of bytes. Raises WireError."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} parse: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"{what} parse: an object is needed")
    return value


class OpenStream(NamedTuple):
    """A request for a stream. epochs 0: endless. max_batch_records 0: the server's default.

    skip: how many records of the stream, over all its epochs, the client has already. fingerprint: of the dataset that
    it must be (`blake3:` and 64 hex digits). mode: how records should travel, one of MODES."""

    dataset_id: str
    seed: int = 0
    shuffle: str = "chunk-shuffled"
    epochs: Optional[int] = None
    sample: Optional[int] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None
    max_batch_records: int = 0
    client_id: Optional[str] = None
    skip: Optional[int] = None
    fingerprint: Optional[str] = None
    mode: Optional[str] = None

    def encode(self) -> bytes:
        """Compact JSON, the fields that say nothing left out, in the public client's order."""
        fields = self._asdict()
        if self.epochs == 1:
            del fields["epochs"]
        named = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
        return json.dumps(named, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> "OpenStream":
        """Raises WireError, saying which field is wrong."""
        given = _parsed(data, "open_stream")
        if "dataset_id" not in given:
            raise WireError("open_stream parse: dataset_id is missing")
        request = cls(**{name: _checked(name, given[name]) for name in _FIELDS if name in given})
        if request.mode is not None and request.mode not in MODES:
            raise WireError(f"open_stream: mode is one of {', '.join(MODES)}, not {request.mode!r}")
        return request


class StreamOpened(NamedTuple):
    """What a server opened. resumed_at: the records it skipped, when it was asked to and does. skip_in_frame: how many
    records of the first raw frame, once shuffled, the client drops. total_records: of the whole stream for its rank,
    over all epochs and from its beginning, when known."""

    dataset_id: str
    fingerprint: str
    effective_seed: int
    effective_shuffle: str
    effective_batch_records: int
    resumed_at: Optional[int] = None
    skip_in_frame: Optional[int] = None
    total_records: Optional[int] = None

    def encode(self) -> bytes:
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def parse(cls, data: bytes) -> "Optional[StreamOpened]":
        """None for bytes that do not say it: no client needs them to go on."""
        try:
            given = _parsed(data, "stream_opened")
            return cls(**{name: given[name] for name in cls._fields if name in given})
        except (WireError, TypeError):
            return None
