"""A whole file compared with what it says about itself: sizes, checksums, record ends, and on request JSON syntax."""

from collections.abc import Iterable

from shuflr import core
from shuflr.errors import DataError
from shuflr.records.codecs import SNIFF, sniff
from shuflr.records.inputs import Input, is_tabular, open_raw
from shuflr.records.pipeline import in_order
from shuflr.records.seekable import SeekableFile
from shuflr.records.sieve import MAX_LINE, Limits, Partition, Sieve, whole_records

SHOWN = 10  # errors named
_JSON_SHOWN = 3


class Findings:
    """What was found; `good` when there is nothing to complain about."""

    def __init__(self, form: str, seekable: bool, deep: bool) -> None:
        self.form = form
        self.seekable = seekable
        self.deep = deep
        self.frames = self.records = self.size = self.oversized = self.json_faults = 0
        self.checksums = "none"
        self.partial = False
        self.errors: list[str] = []

    @property
    def good(self) -> bool:
        return not (self.errors or self.partial or self.oversized or self.json_faults)

    def check_json(self, block: "memoryview | bytearray") -> None:
        """Looks at every record of a block of whole records, the first of which is number `records`."""
        number = self.records
        for record in _records(block):
            number += 1
            fault = core.json_fault(record)
            if fault is not None:
                self.json_faults += 1
                if self.json_faults <= _JSON_SHOWN:
                    self.errors.append(f"record {number}: {fault[0]} at byte {fault[1]}")


def _records(block: "memoryview | bytearray") -> "Iterable[bytes]":
    parts = bytes(block).split(b"\n")
    return parts if parts[-1] else parts[:-1]


def verify_frames(file: SeekableFile, deep: bool, threads: int) -> Findings:
    """Every frame of a seekable file: decodes, its size and its checksum; faults are gathered, not raised.

    Threads decode ahead while this one compares."""
    found = Findings("zstd-seekable", True, deep)
    found.frames = file.frames

    def decode(frame: int, work: core.Work) -> "memoryview | DataError":
        try:
            return file.decode_unchecked(frame, work)
        except DataError as error:
            return error

    carry = b""  # the beginning of a record that goes on in the next frame
    for frame, content in enumerate(in_order(range(file.frames), decode, threads, threaded=True)):
        if isinstance(content, DataError):
            found.errors.append(str(content))
            continue
        try:
            file.check(frame, content)
        except DataError as error:
            found.errors.append(str(error))
            continue
        if deep:
            block = carry + content
            end = core.after_last(block)
            found.check_json(memoryview(block)[:end])
            carry = block[end:]
        found.records += core.count_lf(content)
        found.size += len(content)
        found.partial = len(content) > 0 and content[len(content) - 1] != 0x0A
    if carry:
        found.check_json(memoryview(carry))
    if file.table.checksums:
        found.checksums = "fnv1a" if file.checksum_kind == core.FNV1A else "xxh64"
    return found


def verify_stream(source: Input, deep: bool) -> Findings:
    """Any other input, read through. Damage to a compressed stream is raised: there is nothing behind it to read."""
    found = Findings(_form(source.path), False, deep)
    sieve = Sieve(Limits(MAX_LINE, core.SKIP), Partition())
    last = 0x0A

    def sized() -> "Iterable[memoryview | bytes]":
        nonlocal last
        for chunk in source.chunks():
            found.size += len(chunk)
            last = chunk[len(chunk) - 1] if len(chunk) else last
            yield chunk

    for data, _, _ in whole_records(sized(), sieve):
        if deep:
            found.check_json(data)
        found.records += core.count_lf(data)
    found.oversized = sieve.dropped
    found.records += sieve.dropped
    found.partial = last != 0x0A
    return found


def _form(path: str) -> str:
    if is_tabular(path):
        return "rows"
    raw = open_raw(path)
    try:
        return sniff(raw.read(SNIFF))
    finally:
        raw.close()
