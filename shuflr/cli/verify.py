"""`shuflr verify`: reads a whole file and compares everything it says about itself with what is there."""

import argparse
import json
from typing import Any

from shuflr.cli.options import THREADS, threads_of
from shuflr.records.inputs import Input, as_seekable, require_local_file
from shuflr.records.verification import SHOWN, Findings, verify_frames, verify_stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="any input but standard input")
    parser.add_argument("--deep", action="store_true", help="also check that every record is one JSON value (RFC 8259)")
    parser.add_argument("--threads", type=THREADS, default=0, metavar="N", help="that decode; 0: one a processor")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def run(arguments: argparse.Namespace) -> int:
    seekable = as_seekable(require_local_file(arguments.file, "verify"))
    if seekable is not None:
        found = verify_frames(seekable, arguments.deep, threads_of(arguments.threads))
    else:
        found = verify_stream(Input(arguments.file), arguments.deep)
    print(json.dumps(_facts(arguments.file, found), separators=(",", ":")) if arguments.json else _text(found))
    return 0 if found.good else 65


def _facts(path: str, found: Findings) -> "dict[str, Any]":
    facts: dict[str, Any] = {"file": path, "format": found.form, "records": found.records, "bytes": found.size}
    if found.seekable:
        facts.update(frames=found.frames, checksums=found.checksums)
    else:
        facts.update(oversized=found.oversized, trailing_partial=found.partial)
    if found.deep:
        facts["json_faults"] = found.json_faults
    facts.update(errors=found.errors[:SHOWN], verdict="ok" if found.good else "failed")
    return facts


def _text(found: Findings) -> str:
    rows: list[tuple[str, object]] = [("format", found.form if found.seekable else f"{found.form} (streaming)")]
    if found.seekable:
        rows += [("frames", found.frames), ("checksums", found.checksums)]
    rows += [("records", found.records), ("bytes", found.size)]
    if not found.seekable:
        rows += [("oversized", found.oversized), ("trailing-partial", "yes" if found.partial else "no")]
    if found.deep:
        rows.append(("deep-json", f"{found.json_faults} records are not JSON" if found.json_faults else "all are JSON"))
    lines = [f"{name + ':':<18}{value}" for name, value in rows]
    lines += [f"  {error}" for error in found.errors[:SHOWN]]
    bad = "FAILED" if found.seekable else "ISSUES"
    return "\n".join([*lines, f"{'verdict:':<18}{'OK' if found.good else bad}"])
