"""FileSink: one file for each row that succeeds, named after the row's id.

Invariant: a file under a final name holds the complete value and is durable after `flush`. Errors leave no file, so
every later run tries them again. All in the caller's process: there is nothing to gather.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from types import TracebackType

from saturate.sinks.packing import Record, is_error
from saturate.sinks.store import Location

logger = logging.getLogger("saturate")


class FileSink:
    """Writes `{outdir}/{id}{ext}` with `record[key]`: bytes as they are, anything else as `str()` in UTF-8.

    A record whose id cannot be a file name (empty, with a separator, with a leading dot, too long), that lacks `key`,
    or whose text is not valid Unicode is reported with a log line and counted in `rows_demoted`; the run goes on.

    Raises ValueError for an `ext` that does not start with "." or contains "/" or "..". The directory is made when the
    first file is written.
    """

    def __init__(self, outdir: Location, ext: str = ".txt", key: str = "text") -> None:
        if not ext.startswith(".") or "/" in ext or ".." in ext:
            raise ValueError(f"ext must start with '.' and contain no '/' or '..', not {ext!r}")
        self._directory = os.path.abspath(os.path.expanduser(os.fspath(outdir)))
        self._ext = ext
        self._key = key
        self.rows_demoted = 0

    def existing_ids(self, retry_errors: bool = False) -> set[str]:
        """The ids that have a file. Errors never have one, so `retry_errors` changes nothing."""
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return set()
        return {
            name[: -len(self._ext)]
            for name in names
            if name.endswith(self._ext) and len(name) > len(self._ext) and not name.startswith(".")
        }

    def append(self, record: Record) -> None:
        """Write the record's file, whole or not at all. Raises OSError if the disk does not take it."""
        if is_error(record.get("error")):
            return
        try:
            name = self._file_name(str(record["id"]))
            data = self._contents(record)
            self._write(name, data)
        except _NotStorable as reason:
            self.rows_demoted += 1
            logger.error("row %r has no file: %s", record.get("id"), reason)

    def flush(self) -> None:
        """Make the names of the files durable too."""
        try:
            descriptor = os.open(self._directory, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Flush. The sink may be used again."""
        self.flush()

    def __enter__(self) -> FileSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _file_name(self, id_: str) -> str:
        if not id_ or id_.startswith(".") or any(character in id_ for character in "/\\\0"):
            raise _NotStorable("its id cannot be a file name")
        return id_ + self._ext

    def _contents(self, record: Record) -> bytes:
        if self._key not in record:
            raise _NotStorable(f"its output has no {self._key!r}")
        value = record[self._key]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        try:
            return str(value).encode("utf-8")
        except UnicodeEncodeError as error:
            raise _NotStorable(f"its text is not valid Unicode: {error}")

    def _write(self, name: str, data: bytes) -> None:
        os.makedirs(self._directory, exist_ok=True)
        unfinished = os.path.join(self._directory, f".tmp-{os.getpid()}-{threading.get_ident()}")
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, os.path.join(self._directory, name))
        except (OSError, UnicodeEncodeError) as error:
            try:
                os.unlink(unfinished)
            except FileNotFoundError:
                pass
            if isinstance(error, UnicodeEncodeError) or error.errno == errno.ENAMETOOLONG:
                raise _NotStorable(f"its id cannot be a file name: {error}")
            raise


class _NotStorable(Exception):
    """This record cannot become a file."""
