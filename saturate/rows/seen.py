"""Which ids have been seen: an exact, add-only set for tens of millions of them.

An id of 16 lower-case hex digits, which is what content ids are, is kept as the 64 bits that it spells: 9 to 18 bytes,
and nothing is ever mistaken for it. Any other id is kept as a 128-bit hash (SipHash-2-4 under a random key, so that
nobody can choose ids that collide): 18 to 23 bytes, and among ten million ids the odds that any two share a hash are
1.5e-25, below those of the memory having changed by itself.

Invariant: what was added is found, and nothing else. The ids themselves cannot be read back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional, Union

from shuflr import _native

if TYPE_CHECKING:
    import pyarrow as pa

_ffi, _lib = _native.ffi, _native.lib

# Arrow's text with 64-bit offsets is handed over in pieces whose offsets fit 32.
_PIECE = 1 << 16


class IdSet:
    """A set of ids. Whatever is not a str is kept as it is. Only `update` may be called by two threads at once."""

    def __init__(self) -> None:
        self._set = _ffi.gc(_given(_lib.saturate_idset_new(os.urandom(16))), _lib.saturate_idset_free)
        self._others: set[object] = set()

    def add(self, id_: object) -> bool:
        """Add an id; whether it is new."""
        if not isinstance(id_, str):
            is_new = id_ not in self._others
            self._others.add(id_)
            return is_new
        text = id_.encode("utf-8", "surrogatepass")
        added: int = _lib.saturate_idset_add(self._set, text, len(text))
        if added < 0:
            raise MemoryError
        return added == 1

    def update(self, ids: Union[pa.Array, pa.ChunkedArray], unless_in: Optional[IdSet] = None) -> None:
        """Add a column of ids, except those in `unless_in`. Nulls, and columns that hold no text, have no ids.

        Not in the set, and nothing may be asked of it, before the next `settle`. Several threads may do this at once.
        """
        except_ = _ffi.NULL if unless_in is None else unless_in._set
        for array in _texts(ids):
            _, offsets, text = array.buffers()
            first = _ffi.from_buffer("int32_t[]", offsets) + array.offset
            start = _ffi.NULL if text is None else _ffi.from_buffer(text)
            _given(_lib.saturate_idset_line_up(self._set, except_, start, first, len(array)))

    def settle(self) -> None:
        """Call after the last of several `update`s: they let ids gather, which makes adding many cheap."""
        _given(_lib.saturate_idset_settle(self._set))

    def __contains__(self, id_: object) -> bool:
        if not isinstance(id_, str):
            return id_ in self._others
        text = id_.encode("utf-8", "surrogatepass")
        return bool(_lib.saturate_idset_has(self._set, text, len(text)))

    def __len__(self) -> int:
        return int(_lib.saturate_idset_count(self._set)) + len(self._others)

    @property
    def nbytes(self) -> int:
        """Memory that the ids take."""
        return int(_lib.saturate_idset_bytes(self._set))


def _given(answer: Any) -> Any:
    if not answer:
        raise MemoryError
    return answer


def _texts(ids: Union[pa.Array, pa.ChunkedArray]) -> list[pa.Array]:
    """The column as arrays of text with 32-bit offsets, without nulls and never empty."""
    import pyarrow as pa

    text = pa.string()
    arrays = []
    for array in ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]:
        if array.null_count:
            array = array.drop_null()
        if array.type == text:
            arrays.append(array)
        elif _is_text(array.type):
            arrays.extend(array.slice(start, _PIECE).cast(text) for start in range(0, len(array), _PIECE))
    return [array for array in arrays if len(array)]


def _is_text(type_: pa.DataType) -> bool:
    """Whether another writer's column holds text, in one of Arrow's other ways of holding it."""
    return str(getattr(type_, "value_type", type_)) in ("string", "large_string", "string_view")
