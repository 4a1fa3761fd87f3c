"""Every file name of an output directory: made here, recognised here, nowhere else.

Invariant: a name is recognised by matching one listed name against one pattern, never by a glob over a path, so an
output path may hold any character a path can hold. Readers look at direct children only; whatever a writer has not
finished has a name that no pattern here (and no `part-*.parquet` glob anywhere) matches.

Pure: names in, names out.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterable

MANIFEST = "_manifest"
JOURNAL = "_journal"
COMPLETIONS = "completions"

_PART = re.compile(r"part-[^/]*\.parquet", re.DOTALL)
_DATED = re.compile(r"part-(\d+)", re.ASCII)
_MS_DIGITS = 13
_SIDECAR = re.compile(r"ids-[^/]*\.parquet", re.DOTALL)
_TELEMETRY = re.compile(r"telemetry-shard[^/]*\.jsonl", re.DOTALL)
_SEGMENT = re.compile(r"(part-[^/]*)\.journal", re.DOTALL)


class PartNames:
    """Names for the parts of one writer: `part-{ms}-{seq}-{uuid8}.parquet`.

    Their lexicographic order is the order in which they were handed out, also when the wall clock steps back.
    """

    def __init__(self) -> None:
        self._seq = 0
        self._last_ms = 0
        self._first_ms = 0

    def next(self) -> str:
        self._last_ms = max(self._last_ms, self._first_ms, int(time.time() * 1000))
        name = f"part-{self._last_ms}-{self._seq:06d}-{uuid.uuid4().hex[:8]}.parquet"
        self._seq += 1
        return name

    def follow(self, parts: Iterable[str]) -> None:
        """Sort after these parts, whose writers may have had clocks that are ahead of this one."""
        dated = [match.group(1) for match in map(_DATED.match, parts) if match]
        # As text, for that is how parts are ordered: fewer digits than today's are the first of as many.
        self._first_ms = max((int(max(dated).ljust(_MS_DIGITS, "0")) + 1 if dated else 0), self._first_ms)

    def moved(self, name: str) -> str:
        """`name`, handed out here, or what it should have been had `follow` been called before.

        Moved names keep their order among themselves and come before every name handed out later.
        """
        _, ms, rest = name.split("-", 2)
        return f"part-{max(int(ms), self._first_ms)}-{rest}"


def is_part(name: str) -> bool:
    """Whether a direct child of the output is a part, for this and for every other reader of the contract."""
    return _PART.fullmatch(name) is not None


def sidecar_of(part: str) -> str:
    """The path, relative to the output, of the manifest sidecar of `part`."""
    return f"{MANIFEST}/{sidecar_name(part)}"


def sidecar_name(part: str) -> str:
    """The name of the sidecar of `part` within the manifest directory."""
    return f"ids-{part}"


def part_of_sidecar(name: str) -> str | None:
    """The part that the sidecar called `name` (a direct child of the manifest directory) speaks for, or None."""
    return name[len("ids-") :] if _SIDECAR.fullmatch(name) else None


def segment_of(part: str) -> str:
    """The name of the journal segment that becomes `part`."""
    return part[: -len(".parquet")] + ".journal"


def part_of_segment(name: str) -> str | None:
    """The part that the journal segment called `name` becomes, or None if `name` is no segment."""
    match = _SEGMENT.fullmatch(name)
    return f"{match.group(1)}.parquet" if match else None


def unfinished(name: str) -> str:
    """The name under which a file is written before it is renamed to `name` (both relative to the output)."""
    directory, _, base = name.rpartition("/")
    return f"{directory}/.tmp-{base}" if directory else f".tmp-{base}"


def marker(rank: int) -> str:
    """The file that says shard `rank` has finished a run."""
    return f"{COMPLETIONS}/shard-{rank}.done"


def stats(rank: int) -> str:
    """The file that holds the Stats of shard `rank`'s last finished run."""
    return f"{COMPLETIONS}/stats-{rank}.json"


def telemetry(rank: int) -> str:
    """A fresh telemetry file name: one for each run of each shard."""
    return f"telemetry-shard{rank}-{int(time.time())}-{uuid.uuid4().hex[:6]}.jsonl"


def is_telemetry(name: str) -> bool:
    """Whether a direct child of the output is the telemetry of a run."""
    return _TELEMETRY.fullmatch(name) is not None


def default_journal_root() -> str:
    """Where the journals of outputs that are not local directories live, unless the caller says otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "saturate", "journal")
