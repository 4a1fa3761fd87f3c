"""A file system for tests that keeps files in a local directory and fails when told to.

`flaky://<directory>`: while the file `<directory>.broken` exists every operation raises, and `<directory>.torn` makes
the next write leave half of its contents behind before it raises.
"""

from __future__ import annotations

import os
from typing import Any

from fsspec.implementations.local import LocalFileSystem


class FlakyFileSystem(LocalFileSystem):
    protocol = "flaky"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path)[len("flaky://") :] if str(path).startswith("flaky://") else path))

    def _check(self, path: str) -> None:
        directory = os.environ["FLAKY_ROOT"]
        if os.path.exists(directory + ".broken"):
            raise ConnectionError("the store is away")
        if os.path.exists(directory + ".torn"):
            os.unlink(directory + ".torn")
            with open(self._strip_protocol(path), "wb") as file:
                file.write(b"PAR1half")
            raise ConnectionError("the store went away in the middle")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._check(path)
        super().pipe_file(path, value, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._check(path2)
        super().mv(path1, path2, **options)
