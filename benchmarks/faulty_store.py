"""A file system that keeps files in a local directory and does what it is told at one of its operations.

`faulty://<directory>` is moved into place like most remote file systems, `r2://<directory>` is put whole like an
object store. FAULTY holds JSON: `log`, a file that gets a line for each operation; `at`, the number of the operation to
strike, in the program and in its writer (0: none); `whole`, whether it is an object store; `how`:

    fail          raise instead of doing it
    fail after    do it, then raise: the answer was lost
    torn          write half of the contents, then raise (what is not a write just fails)
    delay         wait first
    kill, kill after, kill all, kill all after
                  SIGKILL before or after it: to the process, or to its whole process group
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from fsspec.implementations.local import LocalFileSystem

DELAY_S = 0.2


def plan_of_process() -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(os.environ.get("FAULTY", "{}"))
    return plan


class FaultyFileSystem(LocalFileSystem):
    protocol = ("faulty", "r2")
    root_marker = "/"
    cachable = False
    count = 0

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).partition("://")[2] if "://" in str(path) else path))

    def _strike(self, operation: str, path: str, do: Callable[[], Any], torn: Callable[[], Any] | None = None) -> Any:
        plan = plan_of_process()
        # The program counts its operations and its writer counts its own; not so the one that looks what came of it.
        if not plan or sys.argv[:1] != ["-c"]:
            return do()
        FaultyFileSystem.count += 1
        with open(plan["log"], "a") as log:
            log.write(f"{operation} {os.path.basename(path)}\n")
        if plan["at"] != FaultyFileSystem.count:
            return do()
        how = plan["how"]
        if how == "torn" and torn is not None:
            torn()
        if how == "delay":
            time.sleep(DELAY_S)
        answer = do() if how == "delay" or how.endswith("after") else None
        if how.startswith("kill all"):
            os.killpg(0, signal.SIGKILL)
        if how.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if how != "delay":
            raise ConnectionError(f"the store went away at {operation} {path}")
        return answer

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if plan_of_process().get("whole"):
            # An object store has no directories that must be there.
            os.makedirs(os.path.dirname(self._strip_protocol(path)), exist_ok=True)

        def torn() -> None:
            # An object store shows a key with all of its contents or not at all.
            if not plan_of_process()["whole"]:
                with open(self._strip_protocol(path), "wb") as file:
                    file.write(value[: len(value) // 2])

        self._strike("put", path, lambda: super(FaultyFileSystem, self).pipe_file(path, value, **options), torn)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._strike("move", path2, lambda: super(FaultyFileSystem, self).mv(path1, path2, **options))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._strike("makedirs", path, lambda: super(FaultyFileSystem, self).makedirs(path, exist_ok))

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        return self._strike("list", path, lambda: super(FaultyFileSystem, self).ls(path, detail, **options))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "r" not in mode:
            return super()._open(path, mode, **options)
        return self._strike("open", path, lambda: super(FaultyFileSystem, self)._open(path, mode, **options))
