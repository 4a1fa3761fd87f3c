"""Where bytes are read from at any offset: a local file, or a file behind an fsspec URL.

Local reads are `pread`: there is no shared file position, so threads and forked processes may use one source. A source
pickles as its name and opens the file again where it arrives.
"""

import os
import time
from typing import Any, Optional, Union

from shuflr.errors import InputError

Path = Union[str, "os.PathLike[str]"]


def file_system(url: str) -> "tuple[Any, str]":
    """The fsspec file system of a URL and the path in it. Raises InputError for a scheme that nothing here serves."""
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InputError(f"{url}: {error}") from None
    return files, path


def is_url(path: str) -> bool:
    """Whether a name is for fsspec rather than for the file system: `scheme://rest`."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.replace("+", "").replace("-", "").isalnum()


class LocalFile:
    """A file of this machine, by `pread`. `read_seconds`: spent in `read_into` so far.

    Opening raises the system's OSError: FileNotFoundError, PermissionError, IsADirectoryError."""

    def __init__(self, path: Path) -> None:
        self.name = os.fspath(path)
        self._fd: Optional[int] = os.open(self.name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.status = os.fstat(self._fd)
        if os.path.isdir(self.name):
            self.close()
            raise IsADirectoryError(f"Is a directory: {self.name!r}")
        self.size = self.status.st_size
        self.read_seconds = 0.0

    @property
    def fd(self) -> int:
        if self._fd is None:
            raise ValueError(f"{self.name} is closed")
        return self._fd

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer only at the end of the file."""
        data = os.pread(self.fd, length, offset)
        while data and len(data) < length and (more := os.pread(self.fd, length - len(data), offset + len(data))):
            data += more
        return data

    def read_into(self, buffer: "bytearray | memoryview", offset: int, length: int) -> memoryview:
        """The same into the beginning of a buffer of at least `length` bytes. One call of the system reads 2 GiB at
        most."""
        view = memoryview(buffer)[:length]
        if not hasattr(os, "preadv"):
            data = self.read(offset, length)
            view[: len(data)] = data
            return view[: len(data)]
        done, began = 0, time.monotonic()
        while done < length and (got := os.preadv(self.fd, [view[done:]], offset + done)):
            done += got
        self.read_seconds += time.monotonic() - began
        return view[:done]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.close()

    def __reduce__(self) -> "tuple[type[LocalFile], tuple[str]]":
        return LocalFile, (self.name,)


class RemoteFile:
    """A file behind an fsspec URL, by ranged reads."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._files, self._path = file_system(url)
        self.info: dict[str, Any] = self._files.info(self._path)
        if self.info.get("size") is None:
            raise OSError(f"{url}: its size is not known, so it cannot be read at an offset")
        self.size = int(self.info["size"])

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._files.cat_file(self._path, start=offset, end=min(offset + length, self.size)))

    def read_into(self, buffer: "bytearray | memoryview", offset: int, length: int) -> memoryview:
        data = self.read(offset, length)
        buffer[: len(data)] = data
        return memoryview(buffer)[: len(data)]

    def close(self) -> None:
        pass

    def __reduce__(self) -> "tuple[type[RemoteFile], tuple[str]]":
        return RemoteFile, (self.name,)


def open_source(path: Path) -> "LocalFile | RemoteFile":
    """A source for a path or an fsspec URL."""
    name = os.fspath(path)
    return RemoteFile(name) if is_url(name) else LocalFile(name)
