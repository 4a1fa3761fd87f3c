"""A record as bytes: what crosses from the caller's process to the writer, and what the journal holds.

Invariant: `unpack(pack(record))` runs no code of the user's program. A subclass of a plain type (a `str` enum, a
namedtuple, an OrderedDict, a numpy float) is packed as the plain value, so a class from the caller's `__main__`
arrives; any other value must come from one of a few libraries whose values a column can hold.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

Record = dict[str, Any]

NOT_STORABLE = "parse output not storable: "

# Libraries whose values Arrow can turn into a column. Everything else is refused when it is unpacked: to load a class
# from the user's own modules would run them again.
_KNOWN_LIBRARIES = frozenset(
    {
        "builtins",
        "_codecs",
        "collections",
        "copyreg",
        "array",
        "datetime",
        "decimal",
        "uuid",
        "zoneinfo",
        "numpy",
        "pandas",
        "pyarrow",
        "pytz",
        "dateutil",
    }
)


def is_error(error: object) -> bool:
    """Whether a record with this `error` is an error record: null and the empty string both mean success."""
    return error is not None and error != ""


def _plain(value: Any) -> Any:
    """The plain value behind an instance of a subclass of a plain type; NotImplemented for anything else.

    The conversion methods of the plain type itself are called, since a subclass may override them (an enum's `str()`
    is its name).
    """
    if isinstance(value, str):
        return str, (str.__str__(value),)
    if isinstance(value, int):
        return int, (int.__int__(value),)
    if isinstance(value, float):
        return float, (float.__float__(value),)
    if isinstance(value, dict):
        return dict, (dict(value.items()),)
    if isinstance(value, tuple):
        return tuple, (list(value),)
    if isinstance(value, list):
        return list, (tuple(value),)
    if isinstance(value, (set, frozenset)):
        return list, (tuple(value),)
    if isinstance(value, (bytes, bytearray)):
        return bytes, (bytes.__getitem__(value, slice(None)) if isinstance(value, bytes) else bytes(value),)
    if isinstance(value, memoryview):
        return bytes, (value.tobytes(),)
    return NotImplemented


class _PlainPickler(pickle.Pickler):
    """Calls `reducer_override` only for what is not exactly a plain type: plain records never enter Python code."""

    def reducer_override(self, value: Any) -> Any:
        return NotImplemented if isinstance(value, type) else _plain(value)


class _KnownUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _KNOWN_LIBRARIES:
            raise TypeError(f"a value of type {module}.{name} cannot be stored in a column")
        return super().find_class(module, name)


class NotStorable(Exception):
    """A packed record holds a value that cannot be unpacked; `id` is the record's id."""

    def __init__(self, id_: str, reason: str) -> None:
        super().__init__(reason)
        self.id = id_


class Packer:
    """Packs records one at a time, reusing one buffer. Not for use by two threads at once."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._pickler = _PlainPickler(self._buffer, pickle.HIGHEST_PROTOCOL)

    def pack(self, record: Record) -> bytes:
        """The id and then the record, each a pickle of its own: so the id outlives a record that does not load.

        Raises KeyError for a record without an id, and whatever a value's own pickling raises; the packer is usable
        afterwards.
        """
        self._buffer.seek(0)
        self._buffer.truncate()
        self._dump(str(record["id"]))
        self._dump(record)
        return self._buffer.getvalue()

    def _dump(self, value: object) -> None:
        self._pickler.clear_memo()
        self._pickler.dump(value)


def unpack(packed: bytes) -> Record:
    """The record, or NotStorable if it holds a value that no column can hold or that does not load."""
    source = io.BytesIO(packed)
    id_ = pickle.Unpickler(source).load()
    try:
        record: Record = _KnownUnpickler(source).load()
    except Exception as error:
        raise NotStorable(id_, f"{type(error).__name__}: {error}") from error
    return record
