"""An output directory as the sinks and readers see it: list, read, and put a whole file so that it is never half there.

Invariant: a name other readers recognise appears only with its complete contents behind it. A local file is written
under an unfinished name, fsynced, renamed, and its directory fsynced. An object store replaces a key in one step, so
the contents go there directly; any other remote file system gets an unfinished name and a move.

Nothing here creates a directory except `put`, so reading an output that does not exist leaves no trace of it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Union

from saturate.sinks import layout

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("saturate")

Location = Union[str, "os.PathLike[str]"]

# Stores that make a key visible only once all of it has arrived.
_WHOLE_KEY_STORES = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "hf", "memory"}
)
# Stores that exist only inside the process that opened them.
PROCESS_LOCAL_STORES = frozenset({"memory"})
_LISTING_ATTEMPTS = 5
_LOCAL_PREFIXES = ("file://", "local://")


class Store(Protocol):
    """What the sinks need of an output directory. Names are relative to it and use `/`."""

    uri: str
    protocol: str

    @property
    def local(self) -> bool:
        """Whether the directory is on a mounted file system: journal inside it, flush every minute."""

    def listing(self, directory: str = "") -> dict[str, int]:
        """Files directly in `directory` and their sizes in bytes, in no order; empty if there is no such directory."""

    def read(self, name: str) -> bytes:
        """The whole file."""

    def tail(self, name: str, size: int) -> bytes:
        """The last `size` bytes of the file (all of it if it is shorter)."""

    def open(self, name: str) -> Any:
        """A seekable source that `pyarrow.parquet.ParquetFile` accepts; the caller closes it."""

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """Make `name` exist, durably, with exactly these contents; replaces what was there."""

    def prepare(self) -> None:
        """Make what the first `put` needs and does not make itself."""

    def is_empty(self) -> bool:
        """Whether the directory does not exist, or has nothing in it."""

    def clear(self) -> None:
        """Remove all that is in the directory."""


def open_store(location: Location) -> Store:
    """The store at a local path (str or pathlib.Path, any characters) or at any fsspec URI (`s3://`, `hf://`, ...).

    Raises whatever fsspec raises for a protocol that it does not know or whose package is missing.
    """
    if isinstance(location, os.PathLike):
        return LocalStore(os.fspath(location))
    for prefix in _LOCAL_PREFIXES:
        if location.startswith(prefix) and "::" not in location:
            return LocalStore(location[len(prefix) :])
    if "://" in location:
        return RemoteStore(location)
    return LocalStore(os.path.expanduser(location))


def journal_directory(store: Store, journal_root: Location | None) -> str:
    """The local directory that holds the journal of the output in `store`.

    Inside the output if that is local, else `<journal root>/<hash of the URI>`; a root that the caller names is used
    for local outputs too.
    """
    if journal_root is None and store.local:
        return os.path.join(store.uri, layout.JOURNAL)
    root = layout.default_journal_root() if journal_root is None else os.path.abspath(os.fspath(journal_root))
    return os.path.join(root, hashlib.sha256(store.uri.encode("utf-8", "surrogateescape")).hexdigest()[:32])


def implementation_of(store: Store) -> tuple[str, str] | None:
    """`(protocol, dotted class)` of a remote output's file system, which the program itself may have registered.

    Another process has to be told of it. Raises ValueError if that process could not import the class.
    """
    if store.local:
        return None
    import fsspec

    class_ = fsspec.get_filesystem_class(store.protocol)
    if class_.__module__ == "__main__" or "<locals>" in class_.__qualname__:
        raise ValueError(
            f"the writer process cannot import {class_.__qualname__}, the file system of {store.uri}: "
            "define it at the top level of a module of its own"
        )
    return store.protocol, f"{class_.__module__}.{class_.__qualname__}"


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalStore:
    """A directory on a mounted file system."""

    protocol = "file"
    local = True

    def __init__(self, path: str) -> None:
        self.uri = os.path.abspath(path)

    def _path(self, name: str) -> str:
        return os.path.join(self.uri, name)

    def listing(self, directory: str = "") -> dict[str, int]:
        sizes = {}
        try:
            entries = os.scandir(self._path(directory))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        with entries:
            for entry in entries:
                try:
                    if entry.is_file():
                        sizes[entry.name] = entry.stat().st_size
                except FileNotFoundError:
                    pass  # another shard has renamed it meanwhile: the directory and its other files are there
        return sizes

    def read(self, name: str) -> bytes:
        with open(self._path(name), "rb") as file:
            return file.read()

    def tail(self, name: str, size: int) -> bytes:
        with open(self._path(name), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            return file.read()

    def open(self, name: str) -> Any:
        import pyarrow as pa

        return pa.OSFile(self._path(name))

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        path, unfinished = self._path(name), self._path(layout.unfinished(name))
        directory = os.path.dirname(path)
        os.makedirs(directory, exist_ok=True)
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            _remove_quietly(unfinished)
            raise
        _sync_directory(directory)

    def prepare(self) -> None:
        os.makedirs(self.uri, exist_ok=True)

    def is_empty(self) -> bool:
        try:
            return not os.listdir(self.uri)
        except FileNotFoundError:
            return True

    def clear(self) -> None:
        shutil.rmtree(self.uri, ignore_errors=True)


def _remove_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


class RemoteStore:
    """A directory behind any other fsspec URI. The file system is opened at the first use."""

    local = False

    def __init__(self, uri: str) -> None:
        import fsspec

        self.uri = uri
        self.protocol = uri.partition("://")[0].partition("::")[0]
        fsspec.get_filesystem_class(self.protocol)  # says at once what is unknown or not installed

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        file_system, root = fsspec.core.url_to_fs(self.uri)
        return file_system, root.rstrip("/")

    @property
    def _fs(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def listing(self, directory: str = "") -> dict[str, int]:
        path = self._path(directory)
        for attempt in range(_LISTING_ATTEMPTS):
            # A cached listing would hide what other shards have written.
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(path, detail=True)
                break
            except NotADirectoryError:
                return {}
            except FileNotFoundError:
                # Some file systems raise it also when one file went away between its name and its size.
                if not self._fs.exists(path):
                    return {}
                if attempt == _LISTING_ATTEMPTS - 1:
                    raise
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: int(entry.get("size") or 0)
            for entry in entries
            if entry.get("type") == "file"
        }

    def read(self, name: str) -> bytes:
        data: bytes = self._fs.cat_file(self._path(name))
        return data

    def tail(self, name: str, size: int) -> bytes:
        data: bytes = self._fs.tail(self._path(name), size)
        return data

    def open(self, name: str) -> Any:
        return self._fs.open(self._path(name), "rb")

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        path = self._path(name)
        contents = data if isinstance(data, bytes) else data.to_pybytes()
        if self.protocol in _WHOLE_KEY_STORES:
            self._fs.pipe_file(path, contents)
            return
        unfinished = self._path(layout.unfinished(name))
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(unfinished, contents)
        self._fs.mv(unfinished, path)

    def prepare(self) -> None:
        if self.protocol == "hf":
            _create_hub_home(self.uri)

    def is_empty(self) -> bool:
        self._fs.invalidate_cache()
        try:
            return not self._fs.find(self._root)
        except FileNotFoundError:
            return True

    def clear(self) -> None:
        for path in self._fs.find(self._root):
            self._fs.rm_file(path)


def _create_hub_home(uri: str) -> None:
    """Create the private dataset repository or bucket that an `hf://` output names, if it does not exist yet.

    A failure is logged only: the name may exist and merely be closed to this call.
    """
    kind, *rest = uri[len("hf://") :].strip("/").split("/")
    if len(rest) < 2:
        return
    name = "/".join(rest[:2]).partition("@")[0]
    try:
        import huggingface_hub

        if kind == "datasets":
            huggingface_hub.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
        elif kind == "buckets":
            huggingface_hub.create_bucket(name, private=True, exist_ok=True)
    except Exception as error:
        logger.warning("cannot create %s (going on, it may exist): %s: %s", uri, type(error).__name__, error)
