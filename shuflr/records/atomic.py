"""Files that appear whole or not at all: written beside their place under a name of their own, fsynced, renamed."""

import os
import stat
import sys
from typing import BinaryIO, Callable, Optional

from shuflr.records.source import Path, is_url


class CannotCreate(OSError):
    """The output cannot be created; `errno` says why."""


class AtomicFile:
    """A new file for `path`, which `commit()` puts in its place; left without a commit it vanishes.

    Where the file system can, it has no name until then, so that not even a killed process leaves it behind. A device,
    pipe or socket is written to directly: there is nothing to rename. `-` is standard output."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self._target: Optional[str] = None  # what it will replace
        self._temporary: Optional[str] = None  # its name until then, if it needs one
        self.file: BinaryIO
        if self.path == "-":
            self.file = sys.stdout.buffer
            return
        if is_url(self.path):
            raise CannotCreate(f"{self.path}: output goes to a local file or to standard output")
        try:
            self._open()
        except OSError as error:
            raise CannotCreate(error.errno, error.strerror, self.path) from None

    def _open(self) -> None:
        target = os.path.realpath(self.path)
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            self.file = open(target, "wb", buffering=0)
            return
        self._target = target
        fd = _unnamed(os.path.dirname(target))
        if fd is None:
            fd, self._temporary = self._named(
                lambda name: os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
            )
        self.file = os.fdopen(fd, "w+b", buffering=0)

    def _named(self, make: "Callable[[str], int]") -> "tuple[int, str]":
        """What make(name) returns for the first free name beside the target, and that name."""
        folder, name = os.path.split(self._target or "")
        for attempt in range(1000):
            temporary = os.path.join(folder, f".{name}.{os.getpid()}.{attempt}.tmp")
            try:
                return make(temporary), temporary
            except FileExistsError:
                continue
        raise FileExistsError(f"no free temporary name beside {self._target}")

    def _link(self, name: str) -> int:
        """Gives the file without a name one."""
        folder = os.open(os.path.dirname(name), os.O_RDONLY)
        try:
            # Only with a folder does os.link follow /proc's link to the file itself.
            os.link(f"/proc/self/fd/{self.file.fileno()}", name, src_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)
        return 0

    def commit(self) -> None:
        """Makes what was written durable and puts it in its place."""
        self.file.flush()
        if self.path == "-":
            return
        if self._target is not None:
            os.fsync(self.file.fileno())
            if self._temporary is None:
                _, self._temporary = self._named(self._link)
            os.replace(self._temporary, self._target)
            self._temporary = None
            _sync_folder(os.path.dirname(self._target))
        self.file.close()

    def verify(self, read_back: "Callable[[str], None]") -> None:
        """Lets read_back(path) look at what was written, before it is committed; what it raises prevents that."""
        self.file.flush()
        nameless = self._target is not None and self._temporary is None
        read_back(f"/proc/self/fd/{self.file.fileno()}" if nameless else self._temporary or self.path)

    def discard(self) -> None:
        """Leaves no trace of a file that was not committed."""
        if self.path != "-":
            self.file.close()
        if self._temporary is not None:
            os.unlink(self._temporary)
            self._temporary = None

    def __enter__(self) -> "AtomicFile":
        return self

    def __exit__(self, *exception: object) -> None:
        if not self.file.closed:
            self.discard()


def _unnamed(folder: str) -> Optional[int]:
    """A file in a folder without a name, where the system can do that and give it one later."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _sync_folder(folder: str) -> None:
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
