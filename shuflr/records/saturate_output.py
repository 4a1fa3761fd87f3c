"""What a saturate run landed, as JSON lines: one object for each id that succeeded, errors left out.

saturate's own reader decides which record an id has (a success wins over an error, a later success over an earlier);
here its rows become text, keys in alphabetical order with the id among them.
"""

import datetime
import decimal
from collections.abc import Iterator, Mapping
from typing import Any

from shuflr.errors import InputError
from shuflr.records.parquet import float_text, quoted

_CHUNK = 1 << 18


def value_text(value: Any) -> str:
    """A value of a row as JSON, by the rules of the parquet input."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, decimal.Decimal):
        return f'"{value:f}"'
    if isinstance(value, bytes):
        return f'"{value.hex()}"'
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        utc = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return f'"{utc.isoformat()}Z"'
    if isinstance(value, (datetime.date, datetime.time)):
        return f'"{value.isoformat()}"'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{quoted(str(key))}:{value_text(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(value_text, value)) + "]"
    raise InputError(f"a value of type {type(value).__name__} has no JSON form here")


def output_lines(path: str) -> Iterator[bytes]:
    """The rows of a saturate output as chunks of JSON lines, in the order in which their ids were first seen."""
    from saturate.sinks.read import read_output

    lines: list[bytes] = []
    size = 0
    for id_, row in read_output(path):
        line = (value_text({**row, "id": id_}) + "\n").encode("utf-8", "surrogatepass")
        lines.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)
