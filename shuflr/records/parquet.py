"""Parquet rows as JSON lines: one object a row, keys in alphabetical order, compact.

Numbers are written as the public program writes them (shortest digits, 1e-7, 1e+300), binary as lowercase hex,
non-finite floats as null. Where it gives up and writes null, these are values: structs and maps as objects, timestamps
as ISO 8601 (UTC with a Z), dates, times and durations as ISO 8601, decimals as strings of their exact digits,
dictionaries as what they stand for.
"""

import datetime
import decimal
import json
import math
import os
from collections.abc import Iterator
from typing import Any, Callable, Optional

from shuflr.errors import DataError, InputError
from shuflr.records.source import file_system

_BATCH = 1024  # rows turned into lines at a time

Encoder = Callable[[Any], str]


class NoSuchColumn(OSError):
    """A projection that names a column the file does not have."""


def float_text(value: float) -> str:
    """Shortest digits that read back, laid out as Rust's serde_json does: exponents from 1e16 up and below 1e-5."""
    if not math.isfinite(value):
        return "null"
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    minus = "-" if sign else ""
    if not value:
        return minus + "0.0"
    point = len(text) + exponent  # where the decimal point stands, counted from the first digit
    if exponent >= 0 and point <= 16:
        return f"{minus}{text}{'0' * exponent}.0"
    if 0 < point <= 16:
        return f"{minus}{text[:point]}.{text[point:]}"
    if -5 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
    return f"{minus}{mantissa}e{point - 1:+d}" if point > 0 else f"{minus}{mantissa}e{point - 1}"


quoted = json.JSONEncoder(ensure_ascii=False).encode


def _iso_seconds(value: Any, unit: str) -> "tuple[int, str]":
    """Whole seconds and the fraction's digits (with its point, without trailing zeros) of a count of units."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    seconds, rest = divmod(value, per_second)
    fraction = f"{rest:0{len(str(per_second)) - 1}d}".rstrip("0") if rest else ""
    return seconds, "." + fraction if fraction else ""


_EPOCH = datetime.datetime(1970, 1, 1)


def _timestamp(kind: Any) -> Encoder:
    def encode(value: int) -> str:
        seconds, fraction = _iso_seconds(value, kind.unit)
        try:
            moment = _EPOCH + datetime.timedelta(seconds=seconds)
        except OverflowError:
            return "null"
        return f'"{moment.isoformat()}{fraction}{"Z" if kind.tz else ""}"'

    return encode


def _time(kind: Any) -> Encoder:
    def encode(value: int) -> str:
        seconds, fraction = _iso_seconds(value, kind.unit)
        return f'"{(_EPOCH + datetime.timedelta(seconds=seconds)).time().isoformat()}{fraction}"'

    return encode


def _duration(kind: Any) -> Encoder:
    def encode(value: int) -> str:
        seconds, fraction = _iso_seconds(abs(value), kind.unit)
        return f'"{"-" if value < 0 else ""}PT{seconds}{fraction}S"'

    return encode


def _list(kind: Any) -> Encoder:
    item = _nullable(_encoder(kind.value_type))
    return lambda value: "[" + ",".join(map(item, value)) + "]"


def _struct(kind: Any) -> Encoder:
    fields = sorted((kind.field(i).name, _nullable(_encoder(kind.field(i).type))) for i in range(kind.num_fields))
    named = [(name, quoted(name) + ":", encode) for name, encode in fields]
    return lambda value: "{" + ",".join(key + encode(value[name]) for name, key, encode in named) + "}"


def _mapping(kind: Any) -> Encoder:
    item = _nullable(_encoder(kind.item_type))
    key = _encoder(kind.key_type)

    def encode(value: "list[tuple[Any, Any]]") -> str:
        pairs = []
        for name, content in value:
            text = key(name)
            pairs.append((text if text.startswith('"') else quoted(text)) + ":" + item(content))
        return "{" + ",".join(pairs) + "}"

    return encode


def _nullable(encode: Encoder) -> Encoder:
    return lambda value: "null" if value is None else encode(value)


def _encoder(kind: Any) -> Encoder:
    """How a value of an arrow type, not null, is written."""
    import pyarrow.types as is_

    table: tuple[tuple[Callable[[Any], bool], Encoder], ...] = (
        (is_.is_boolean, lambda value: "true" if value else "false"),
        (is_.is_integer, str),
        (is_.is_floating, float_text),
        (is_.is_string, quoted),
        (is_.is_large_string, quoted),
        (getattr(is_, "is_string_view", lambda kind: False), quoted),
        (is_.is_binary, lambda value: f'"{value.hex()}"'),
        (is_.is_large_binary, lambda value: f'"{value.hex()}"'),
        (is_.is_fixed_size_binary, lambda value: f'"{value.hex()}"'),
        (getattr(is_, "is_binary_view", lambda kind: False), lambda value: f'"{value.hex()}"'),
        (is_.is_date, lambda value: f'"{value.isoformat()}"'),
        (is_.is_decimal, lambda value: f'"{value:f}"'),
        (is_.is_null, lambda value: "null"),
    )
    for matches, encode in table:
        if matches(kind):
            return encode
    if is_.is_timestamp(kind):
        return _timestamp(kind)
    if is_.is_time(kind):
        return _time(kind)
    if is_.is_duration(kind):
        return _duration(kind)
    if is_.is_map(kind):
        return _mapping(kind)
    if is_.is_struct(kind):
        return _struct(kind)
    if is_.is_dictionary(kind):
        return _encoder(kind.value_type)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _list(kind)
    raise InputError(f"a parquet column of type {kind} has no JSON form here")


def _countable(kind: Any) -> Any:
    """The type that a column is read as: times as plain counts of their unit, so that no digit is lost."""
    import pyarrow as pa
    import pyarrow.types as is_

    if is_.is_dictionary(kind):
        return _countable(kind.value_type)
    if is_.is_timestamp(kind) or is_.is_time64(kind) or is_.is_duration(kind):
        return pa.int64()
    if is_.is_time32(kind):
        return pa.int32()
    if is_.is_struct(kind):
        return pa.struct([kind.field(i).with_type(_countable(kind.field(i).type)) for i in range(kind.num_fields)])
    if is_.is_map(kind):
        return pa.map_(_countable(kind.key_type), _countable(kind.item_type))
    if is_.is_list(kind):
        return pa.list_(_countable(kind.value_type))
    if is_.is_large_list(kind):
        return pa.large_list(_countable(kind.value_type))
    if is_.is_fixed_size_list(kind):
        return pa.list_(_countable(kind.value_type), kind.list_size)
    return kind


def batch_lines(batch: Any) -> bytes:
    """The rows of a record batch as JSON lines."""
    names = batch.schema.names
    order = sorted(range(len(names)), key=lambda i: names[i])
    columns = []
    for i in order:
        kind = batch.schema.field(i).type
        values = batch.column(i).cast(_countable(kind)).to_pylist()
        encode = _nullable(_encoder(kind))
        key = quoted(names[i]) + ":"
        columns.append([key + encode(value) for value in values])
    if not columns:
        return b"{}\n" * int(batch.num_rows)
    return "".join("{" + ",".join(row) + "}\n" for row in zip(*columns)).encode("utf-8", "surrogatepass")


def parquet_files(path: str) -> "tuple[Any, list[str]]":
    """The file system (None: this machine's) and the files of an input, sorted: a file, a directory's own `*.parquet`,
    or the `data/*.parquet` of `hf://user/repo[@revision]`. Raises FileNotFoundError."""
    if path.startswith("hf://"):
        from huggingface_hub import HfFileSystem

        files = HfFileSystem()
        repository = path[len("hf://") :].strip("/")
        if repository.startswith("datasets/"):
            repository = repository[len("datasets/") :]
        if repository.count("/") != 1:
            raise InputError(f"{path}: a hub dataset is hf://user/repo or hf://user/repo@revision")
        found = sorted(files.glob(f"datasets/{repository}/data/*.parquet"))
        if not found:
            raise FileNotFoundError(f"{path}: no data/*.parquet in this dataset")
        return files, found
    if "://" in path:
        remote, inner = file_system(path)
        return remote, [inner]
    if os.path.isdir(path):
        return None, sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet"))
    return None, [path]


def json_lines(path: str, columns: "Optional[list[str]]" = None) -> Iterator[bytes]:
    """The rows of a parquet input as chunks of JSON lines. `columns` are the names to keep.

    Files are opened one after the other and read by row group. Raises NoSuchColumn."""
    from pyarrow import ArrowException

    files, paths = parquet_files(path)
    for name in paths:
        opened = open(name, "rb") if files is None else files.open(name, "rb")
        with opened as file:
            try:
                yield from _file_lines(file, name, columns)
            except ArrowException as error:
                raise DataError(f"{name}: {error}") from None


def _file_lines(file: Any, name: str, columns: "Optional[list[str]]") -> Iterator[bytes]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    known = table.schema_arrow.names
    missing = [column for column in columns or () if column not in known]
    if missing:
        raise NoSuchColumn(f"{name}: no column named {', '.join(missing)}; it has {', '.join(known)}")
    for batch in table.iter_batches(batch_size=_BATCH, columns=columns):
        yield batch_lines(batch)
