"""Which type a column has, which value may enter it, and which row becomes an error row because of that.

Invariants:
* a column's type is pinned at the first batch that shows a typed value in it and never changes after that, except
  that a part of it which was only ever null takes its first type;
* a value enters a column unchanged or its row becomes an error row: nothing is truncated, dropped or reinterpreted;
* a row that is turned away leaves no trace on the pinned types;
* the column order is a function of the rows: id, error, then as first seen.

Pure: records in, an Arrow table out. A batch that fits is typed and converted by Arrow, a column at a time; one that
does not is halved until the rows that do not fit are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from saturate.sinks.packing import NOT_STORABLE, Record, is_error

_RESERVED = ("id", "error")


class Misfit(Exception):
    """This value cannot be stored in this column."""


@dataclass(frozen=True)
class Fit:
    """A batch as it will be stored, and the rows of it that became error rows: (position, error text)."""

    table: pa.Table
    demoted: list[tuple[int, str]]


def storable_text(text: object) -> str:
    """`str(text)` with lone surrogates, which UTF-8 cannot hold, written out as escapes."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


# --- Kinds of types -------------------------------------------------------------------------------------------------

_KIND_TESTS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("null", kinds.is_null),
    ("bool", kinds.is_boolean),
    ("int", kinds.is_integer),
    ("float", kinds.is_floating),
    ("decimal", kinds.is_decimal),
    ("string", kinds.is_string),
    ("string", kinds.is_large_string),
    ("binary", kinds.is_binary),
    ("binary", kinds.is_large_binary),
    ("binary", kinds.is_fixed_size_binary),
    ("date", kinds.is_date),
    ("timestamp", kinds.is_timestamp),
    ("time", kinds.is_time),
    ("duration", kinds.is_duration),
    ("struct", kinds.is_struct),
    ("list", kinds.is_list),
    ("list", kinds.is_large_list),
    ("list", kinds.is_fixed_size_list),
)

# Conversions between kinds that keep the value (Arrow's safe cast refuses the single values that would not survive).
_INTO_PINNED = frozenset({("int", "float")})
_INTO_DECLARED = _INTO_PINNED | {
    ("float", "int"),
    ("int", "decimal"),
    ("string", "binary"),
    ("binary", "string"),
    ("date", "timestamp"),
}


def kind(type_: pa.DataType) -> str:
    """The kind of a type; Misfit for a type that no value of a parse output should have."""
    for name, test in _KIND_TESTS:
        if test(type_):
            return name
    raise Misfit(f"values of Arrow type {type_} are not supported")


def _is_untyped(type_: pa.DataType) -> bool:
    """Whether a type says nothing yet: only null, `[]` and `{}` have been seen."""
    name = kind(type_)
    if name == "list":
        return _is_untyped(type_.value_type)
    if name == "struct":
        return all(_is_untyped(type_.field(i).type) for i in range(type_.num_fields))
    return name == "null"


def _is_inferable(type_: pa.DataType) -> bool:
    """Whether a type is built from supported kinds only, all the way down."""
    try:
        name = kind(type_)
    except Misfit:
        return False
    if name == "list":
        return _is_inferable(type_.value_type)
    return name != "struct" or all(_is_inferable(type_.field(i).type) for i in range(type_.num_fields))


def _decoded(type_: pa.DataType) -> pa.DataType:
    """The type of the values behind an encoding that another writer may have chosen for a column."""
    if kinds.is_dictionary(type_):
        return _decoded(type_.value_type)
    return {"string_view": pa.string(), "binary_view": pa.binary()}.get(str(type_), type_)


# --- From Python values to Arrow ------------------------------------------------------------------------------------


def infer(values: Sequence[Any]) -> pa.Array:
    """The values as Arrow sees them. Misfit if Arrow cannot, or could only by changing one of them."""
    try:
        array = pa.array(values)
        if isinstance(array, pa.ChunkedArray):
            raise Misfit("more than 2 GiB of text in one column of one part")
        _refuse_reinterpreted(values, array.type)
    except Misfit:
        raise
    except Exception as error:
        raise Misfit(f"{type(error).__name__}: {error}") from error
    return array


# What Arrow's inference quietly turns into the type on the left, and the only Python types that belong there.
_FAITHFUL: dict[str, frozenset[str]] = {
    "float": frozenset({"float", "int", "NoneType", "float16", "float32", "float64"}),
    "date": frozenset({"date", "NoneType"}),
    "decimal": frozenset({"Decimal", "NoneType"}),
}


def _refuse_reinterpreted(values: Iterable[Any], type_: pa.DataType) -> None:
    """Misfit where a bool would become 1.0, a datetime a date, an object's key another key, a zone be lost."""
    name = kind(type_)
    if name == "list":
        if _may_reinterpret(type_.value_type):
            _refuse_reinterpreted(chain.from_iterable(v for v in values if v is not None), type_.value_type)
    elif name == "struct":
        objects = [value for value in values if value is not None]
        for key in {key for keys in map(tuple, objects) for key in keys}:
            if type(key) is not str:
                raise Misfit(f"TypeError: a key of an object must be a str, not {type(key).__name__}")
        for field in type_:
            if _may_reinterpret(field.type):
                _refuse_reinterpreted([value.get(field.name) for value in objects], field.type)
    elif name in _FAITHFUL:
        strangers = {found.__name__ for found in set(map(type, values))} - _FAITHFUL[name]
        if strangers and not all(stranger.startswith(("int", "uint")) for stranger in strangers):
            raise Misfit(f"TypeError: {', '.join(sorted(strangers))} beside values stored as {type_}")
    elif name == "timestamp":
        zoned = {value.tzinfo is not None for value in values if getattr(value, "tzinfo", value) is not value}
        if len(zoned) > 1:
            raise Misfit("TypeError: datetimes with and without a time zone in one column")


def _may_reinterpret(type_: pa.DataType) -> bool:
    return kind(type_) in ("list", "struct", "timestamp", *_FAITHFUL)


def _refuse_nested_empty(values: Iterable[Any], type_: pa.DataType, path: str) -> None:
    """Misfit where an object without keys sits below the top level: it would come back as an object of nulls."""
    if not _has_struct_within(type_):
        return
    present = [value for value in values if value is not None]
    below: list[tuple[str, pa.DataType, list[Any]]]
    if _nesting(type_) == "list":
        below = [("[]", type_.value_type, list(chain.from_iterable(present)))]
    else:
        # Arrow also takes an object as a list of pairs, where the type is declared.
        objects = [value for value in present if isinstance(value, dict)]
        below = [(f".{f.name}", f.type, [value.get(f.name) for value in objects]) for f in type_]
    for step, inner, found in below:
        if _nesting(inner) == "struct" and any(value is not None and not value for value in found):
            raise Misfit(f"{path}{step} is an object without keys, which can be stored only as a whole column")
        _refuse_nested_empty(found, inner, path + step)


def _nesting(type_: pa.DataType) -> str:
    """Whether it is a list or an object; "" for neither. A declared type may be one without a kind, such as a map."""
    for name, test in _KIND_TESTS:
        if name in ("list", "struct") and test(type_):
            return name
    return ""


def _has_struct_within(type_: pa.DataType) -> bool:
    name = _nesting(type_)
    inner = [type_.value_type] if name == "list" else [field.type for field in type_] if name == "struct" else []
    return any(_nesting(each) == "struct" or _has_struct_within(each) for each in inner)


def _infer_column(name: str, records: Sequence[Record]) -> pa.Array:
    """The column's values as Arrow sees them; Misfit for what no part can hold, whatever is in the other rows."""
    values = [record.get(name) for record in records]
    array = infer(values)
    _refuse_nested_empty(values, array.type, name)
    return array


# --- From one type to another ---------------------------------------------------------------------------------------


def _struct_fields(type_: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in type_}


def widen(pinned: pa.DataType, found: pa.DataType, path: str, accepts: frozenset[tuple[str, str]]) -> pa.DataType:
    """The pinned type, with what was only ever null filled in by `found`. Misfit if `found` may not enter it."""
    if found == pinned or kinds.is_null(found):
        return pinned
    if kinds.is_null(pinned):
        return found
    from_kind, into_kind = kind(found), kind(pinned)
    if from_kind == into_kind == "list":
        inner = widen(pinned.value_type, found.value_type, f"{path}[]", accepts)
        return pinned if inner == pinned.value_type else pa.list_(inner)
    if from_kind == into_kind == "struct":
        fields = _struct_fields(pinned)
        for name, type_ in _struct_fields(found).items():
            if name not in fields:
                raise Misfit(
                    f"new key {name!r} in {path}, whose keys are pinned to {sorted(fields)}: "
                    "name every key in schema=, or store a JSON string"
                )
            fields[name] = widen(fields[name], type_, f"{path}.{name}", accepts)
        return pa.struct(list(fields.items()))
    if from_kind != into_kind and (from_kind, into_kind) not in accepts:
        raise Misfit(f"{path} holds {pinned}, not {found}")
    return pinned


def unify(seen: pa.DataType, found: pa.DataType, path: str) -> pa.DataType:
    """The type of a column that is not pinned yet and has shown both types in one batch. Misfit if there is none."""
    if found == seen or kinds.is_null(found):
        return seen
    if kinds.is_null(seen):
        return found
    pair = {kind(seen), kind(found)}
    if pair == {"list"}:
        return pa.list_(unify(seen.value_type, found.value_type, f"{path}[]"))
    if pair == {"struct"}:
        fields = _struct_fields(seen)
        for name, type_ in _struct_fields(found).items():
            fields[name] = unify(fields.get(name, pa.null()), type_, f"{path}.{name}")
        return pa.struct(list(fields.items()))
    if pair == {"int", "float"} or pair == {"float"}:
        return pa.float64()
    if pair == {"int"}:
        return pa.int64()
    if pair == {"string", "binary"}:
        return pa.binary()
    if pair == {"decimal"}:
        scale = max(seen.scale, found.scale)
        digits = max(seen.precision - seen.scale, found.precision - found.scale)
        if digits + scale > 38:
            raise Misfit(f"{path} would need more than 38 decimal digits")
        return pa.decimal128(digits + scale, scale)
    if pair == {"timestamp"} and (seen.tz is None) == (found.tz is None):
        return seen
    if len(pair) == 1 and pair <= {"duration", "time", "string", "binary"}:
        return seen
    raise Misfit(f"{path} holds {seen}, not {found}")


def conform(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The array as `target`, which `widen` or `unify` has accepted. Misfit if one value would not survive."""
    try:
        return _conform(array, target)
    except Misfit:
        raise
    except Exception as error:
        raise Misfit(f"{type(error).__name__}: {error}") from error


def _conform(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type == target:
        return array
    from_kind, into_kind = kind(array.type), kind(target)
    if from_kind == "null":
        return pa.nulls(len(array), target)
    if from_kind == "struct":
        children = dict(zip(_struct_fields(array.type), array.flatten()))
        arrays = [
            _conform(children[field.name], field.type) if field.name in children else pa.nulls(len(array), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(target), mask=array.is_null())
    if from_kind == "list" and not kinds.is_fixed_size_list(target) and not kinds.is_fixed_size_list(array.type):
        values, maker = _conform(array.values, target.value_type), pa.ListArray
        offsets = array.offsets
        if kinds.is_large_list(target):
            maker, offsets = pa.LargeListArray, offsets.cast(pa.int64())
        return maker.from_arrays(offsets, values, type=target, mask=array.is_null())
    converted = array.cast(target, safe=True)
    if into_kind == "float" and pc.any(pc.and_(pc.is_inf(converted), pc.is_finite(array))).as_py():
        raise Misfit(f"a number too large for {target}")
    return converted


# --- A whole batch --------------------------------------------------------------------------------------------------


class Schema(Protocol):
    """What turns records into a part."""

    def fit(self, records: Sequence[Record]) -> Fit:
        """One part's worth of records as a table; a record that cannot be stored is an error row in it."""


class Pinned:
    """Dynamic mode: each column has the type it showed first, in this output and in this run."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        """`schema`: that of the output's last readable part, if there is one."""
        self._types: dict[str, pa.DataType] = {}
        for field in schema or ():
            type_ = _decoded(field.type)
            if field.name not in _RESERVED and _is_inferable(type_) and not _is_untyped(type_):
                self._types[field.name] = type_

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The pinned columns, in order (a copy)."""
        return dict(self._types)

    def fit(self, records: Sequence[Record]) -> Fit:
        """The records with every pinned column (typed nulls where absent); pins what they are first to show."""
        rejected: dict[int, str] = {}
        try:
            columns = self._fit_columns(records)
        except Misfit:
            columns = self._fit_rows(records, rejected)
        self._types.update({name: array.type for name, array in columns.items()})
        for name, type_ in self._types.items():
            if name not in columns:
                columns[name] = pa.nulls(len(records), type_)
        return _fit(records, {name: columns[name] for name in self._types}, rejected)

    def _fit_columns(self, records: Sequence[Record]) -> dict[str, pa.Array]:
        columns = {}
        for name in _column_names(records):
            array = _infer_column(name, records)
            type_ = self._enter(name, array.type, pa.null())
            if name in self._types or not _is_untyped(type_):
                columns[name] = conform(array, type_)
        return columns

    def _enter(self, name: str, found: pa.DataType, seen: pa.DataType) -> pa.DataType:
        """The type of a column once `found` has entered it; `seen` is its type so far if it is not pinned."""
        if name in self._types:
            return widen(self._types[name] if kinds.is_null(seen) else seen, found, name, _INTO_PINNED)
        return unify(seen, found, name)

    def _fit_rows(self, records: Sequence[Record], rejected: dict[int, str]) -> dict[str, pa.Array]:
        """The columns of the records that fit, first come first served; adds the others to `rejected`."""
        while True:
            types = dict(self._types)
            stretches: list[_Stretch] = []
            self._admit([i for i in range(len(records)) if i not in rejected], records, types, stretches, rejected)
            columns: dict[str, list[pa.Array]] = {name: [] for name in types}
            late: dict[int, str] = {}
            for stretch in stretches:
                _convert(stretch, records, types, columns, late)
            if not late:
                break
            # A row that turns out not to convert may have shaped the types: find them again without it.
            rejected.update(late)
        order = iter(range(len(records)))
        spread = pa.array([None if i in rejected else next(order) for i in range(len(records))], pa.int64())
        return {
            name: pa.concat_arrays([pa.nulls(0, types[name]), *pieces]).take(spread)
            for name, pieces in columns.items()
            if name in self._types or not _is_untyped(types[name])
        }

    def _admit(
        self,
        positions: list[int],
        records: Sequence[Record],
        types: dict[str, pa.DataType],
        stretches: list[_Stretch],
        rejected: dict[int, str],
    ) -> None:
        """Let rows enter `types` in order, in stretches that agree as a whole; halve a stretch that does not."""
        if not positions:
            return
        try:
            stretch = _Stretch.of(positions, records)
            types.update({n: self._enter(n, a.type, types.get(n, pa.null())) for n, a in stretch.columns.items()})
            stretches.append(stretch)
        except Misfit as misfit:
            if len(positions) == 1:
                rejected[positions[0]] = str(misfit)
                return
            middle = len(positions) // 2
            self._admit(positions[:middle], records, types, stretches, rejected)
            self._admit(positions[middle:], records, types, stretches, rejected)


@dataclass(frozen=True)
class _Stretch:
    """Rows whose values Arrow can hold side by side."""

    positions: list[int]
    columns: dict[str, pa.Array]

    @classmethod
    def of(cls, positions: list[int], records: Sequence[Record]) -> _Stretch:
        rows = [records[i] for i in positions]
        return cls(positions, {name: _infer_column(name, rows) for name in _column_names(rows)})


def _convert(
    stretch: _Stretch,
    records: Sequence[Record],
    types: dict[str, pa.DataType],
    columns: dict[str, list[pa.Array]],
    late: dict[int, str],
) -> None:
    """Append the rows' values to `columns`, as `types`; a row with a value that does not convert goes to `late`."""
    count = len(stretch.positions)
    try:
        converted = {
            name: conform(stretch.columns[name], type_) if name in stretch.columns else pa.nulls(count, type_)
            for name, type_ in types.items()
        }
    except Misfit as misfit:
        if count == 1:
            late[stretch.positions[0]] = str(misfit)
            return
        middle = count // 2
        for half in (stretch.positions[:middle], stretch.positions[middle:]):
            _convert(_Stretch.of(half, records), records, types, columns, late)
        return
    for name, array in converted.items():
        columns[name].append(array)


class Declared:
    """Declared mode: every part has exactly the caller's schema."""

    def __init__(self, schema: pa.Schema) -> None:
        """Raises ValueError (TypeError if it is no schema) with what to change."""
        if not isinstance(schema, pa.Schema):
            raise TypeError(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        if len(set(schema.names)) < len(schema.names):
            raise ValueError("schema names a column twice")
        for name in _RESERVED:
            if name not in schema.names or schema.field(name).type != pa.string():
                raise ValueError(f"schema must have a column {name!r} of type string")
        for field in schema:
            if not field.nullable and field.name != "id":
                raise ValueError(f"column {field.name!r} of schema must be nullable: an error row has no value for it")
        self._schema = schema.remove_metadata()

    def fit(self, records: Sequence[Record]) -> Fit:
        """The records with exactly the declared columns, in the declared order."""
        names = [name for name in self._schema.names if name not in _RESERVED]
        known = {*names, *_RESERVED}
        rejected: dict[int, str] = {}
        for position, record in enumerate(records):
            if not record.keys() <= known:
                extra = ", ".join(sorted(repr(key) for key in record.keys() - known))
                rejected[position] = f"not in the declared schema: {extra}"
        while True:
            columns: dict[str, pa.Array] = {}
            late: dict[int, str] = {}
            for name in names:
                values = [None if i in rejected else record.get(name) for i, record in enumerate(records)]
                columns[name] = pa.concat_arrays(self._column_by_row(name, values, 0, late))
            if not late:
                return _fit(records, columns, rejected, self._schema)
            rejected.update(late)

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        target = self._schema.field(name).type
        if not _is_inferable(target) or kinds.is_decimal(target):
            # Nothing that inference says about the values helps here; Arrow's own conversion refuses what is lossy.
            try:
                array = pa.array(values, type=target)
            except Exception as error:
                raise Misfit(f"{name}: {type(error).__name__}: {error}") from error
            _refuse_nested_empty(values, target, name)
            return array
        array = infer(values)
        _refuse_nested_empty(values, array.type, name)
        widen(target, array.type, name, _INTO_DECLARED)
        return conform(array, target)

    def _column_by_row(self, name: str, values: list[Any], start: int, refused: dict[int, str]) -> list[pa.Array]:
        """The column in pieces that convert, nulls for the values that do not; `start` is the first one's position."""
        try:
            return [self._column(name, values)]
        except Misfit as misfit:
            if len(values) == 1:
                refused[start] = str(misfit)
                return [pa.nulls(1, self._schema.field(name).type)]
        middle = len(values) // 2
        return [
            *self._column_by_row(name, values[:middle], start, refused),
            *self._column_by_row(name, values[middle:], start + middle, refused),
        ]


def all_demoted(records: Sequence[Record], reason: str) -> Fit:
    """Every record as an error row: what is left when a part turns out impossible to encode."""
    return _fit(records, {}, dict.fromkeys(range(len(records)), reason))


def _column_names(records: Sequence[Record]) -> list[str]:
    """The user columns of the records, as first seen. Misfit for a name that no column can have."""
    seen: Record = {}
    for record in records:
        seen.update(record)
    for name in seen:
        if type(name) is not str:
            raise Misfit(f"TypeError: a column name must be a str, not {type(name).__name__}")
        if storable_text(name) != name:
            raise Misfit(f"the column name {name!r} cannot be written as UTF-8")
    return [name for name in seen if name not in _RESERVED]


def _fit(
    records: Sequence[Record], columns: dict[str, pa.Array], rejected: dict[int, str], schema: pa.Schema | None = None
) -> Fit:
    errors = [storable_text(e) if is_error(e) else None for e in (record.get("error") for record in records)]
    # A record that was an error already keeps its own error: that it carried columns nobody can store is no news.
    demoted = [(i, NOT_STORABLE + storable_text(why)) for i, why in sorted(rejected.items()) if errors[i] is None]
    for position, text in demoted:
        errors[position] = text
    ids = pa.array([storable_text(record["id"]) for record in records], pa.string())
    every = {"id": ids, "error": pa.array(errors, pa.string()), **columns}
    if schema is None:
        return Fit(pa.table(every), demoted)
    return Fit(pa.table([every[name] for name in schema.names], schema=schema), demoted)
