"""Every recording of the public program, replayed: the same command line gives the same bytes and the same exit code.

`tests/vectors/recorded/` holds what it did; `DEVIATIONS` holds where ours is meant to differ, and why.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Optional

import pytest

from shuflr import core
from shuflr.cli import run
from shuflr.records.fingerprint import fingerprint_of
from shuflr.records.seekable import SeekableFile
from shuflr.records.sidecar import PLAIN, SEEKABLE, plain_index, seekable_index
from shuflr.records.source import LocalFile

RECORDED = Path(__file__).parent.parent / "vectors" / "recorded"
ANSWERS = json.loads((RECORDED.parent / "known_answers.json").read_text())
CLI = json.loads((RECORDED / "cli.json").read_text())
CONVERTED = json.loads((RECORDED / "convert.json").read_text())
SIDECARS = json.loads((RECORDED / "sidecars.json").read_text())
PARQUET = json.loads((RECORDED / "parquet" / "convert.json").read_text())


class Deviation(NamedTuple):
    """What ours does instead, and why. `output` is compared where it is given."""

    why: str
    exit: int
    output: Optional[bytes] = None


def deviation(entry: "dict[str, object]") -> Optional[Deviation]:
    """The deviation that covers a recorded command line, if any does."""
    args, exit_code = list(entry["args"]), entry["exit"]  # type: ignore[call-overload]
    command = args[0] if args else ""
    if exit_code in (2, 101):
        return Deviation("a usage error exits 64, as documented there", 64)
    if "empty.jsonl.zst" in args and command == "verify":
        return Deviation("an empty seekable file is in order; there it is taken for a text of 17 bytes", 0)
    if "empty.jsonl.zst" in args and entry.get("stdout_len") and command == "stream":
        return Deviation("an empty seekable file streams as nothing; there as a text of 17 bytes", 0, b"")
    if any("damaged.flip" in argument for argument in args) and command in ("stream", "verify"):
        return Deviation("a checksum that does not agree is found before its frame is handed out", 65)
    if "--rank" in args and "--world-size" in args and _option(args, "--rank") >= _option(args, "--world-size"):
        return Deviation("a rank that does not exist is refused; there it gets everything", 64, b"")
    if "nodir/x.zst" in args:
        return Deviation("an output that cannot be created exits 73, as documented there", 73)
    if args == ["serve"]:
        return None
    return None


def _option(args: "list[str]", name: str) -> int:
    return int(args[args.index(name) + 1])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with all inputs and what the public program wrote."""
    folder = tmp_path_factory.mktemp("recorded")
    for kind in ("inputs", "seekable"):
        for path in (RECORDED / kind).iterdir():
            shutil.copy(path, folder / path.name)
    shutil.copytree(RECORDED / "parquet", folder / "parquet")
    return folder


@pytest.fixture
def there(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("SHUFLR_SEED", raising=False)
    return place


def replay(entry, monkeypatch, capfdbinary, stdin_path):
    """Runs a recorded command line in this process; returns exit code and standard output."""
    for name, value in entry.get("env", {}).items():
        monkeypatch.setenv(name, value)
    stdin_path.write_bytes(bytes.fromhex(entry.get("stdin_hex", "")))
    with open(stdin_path) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code = run(list(entry["args"]))
    sys.stdout.flush()
    return code, capfdbinary.readouterr().out


@pytest.mark.parametrize("entry", CLI, ids=lambda entry: " ".join(entry["args"]) or "bare")
def test_a_recorded_command_line_gives_the_recorded_bytes(entry, there, monkeypatch, capfdbinary, tmp_path):
    if entry["args"] == ["serve"]:
        pytest.skip("the server's own tests replay its command")
    code, out = replay(entry, monkeypatch, capfdbinary, tmp_path / "stdin")
    different = deviation(entry)
    if different is not None:
        assert code == different.exit, different.why
        assert different.output is None or out == different.output, different.why
        return
    assert code == entry["exit"]
    if "stdout_sha256" in entry:
        assert (len(out), hashlib.sha256(out).hexdigest()) == (entry["stdout_len"], entry["stdout_sha256"])


def test_the_deviations_are_few():
    covered = [entry for entry in CLI if deviation(entry) is not None]
    assert len(CLI) == 799
    assert len(covered) <= 50


def frames(path: Path) -> "list[bytes]":
    file, work = SeekableFile(path), core.Work()
    return [bytes(file.decode(i, work)) for i in range(file.frames)]


@pytest.mark.parametrize("entry", CONVERTED, ids=lambda entry: entry["file"])
def test_their_files_are_read_and_ours_are_cut_alike(entry, there, tmp_path, capfd):
    theirs, ours = there / entry["file"], tmp_path / entry["file"]
    content = b"".join(frames(theirs))
    if entry["source"] != "empty.jsonl":  # recorded there as the 17 bytes of its table and an LF
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["content_len"], entry["content_sha256"])
    for threads in ([], ["-T", "1"], ["-T", "3"]):
        arguments = [argument for argument in entry["args"]]
        assert run(["convert", entry["source"], "-o", str(ours), *arguments, *threads]) == 0
        assert frames(ours) == frames(theirs)
        assert SeekableFile(ours).table.has_checksums == SeekableFile(theirs).table.has_checksums
    capfd.readouterr()
    assert run(["info", entry["file"], "--json"]) == 0
    assert capfd.readouterr().out == entry["info_json"]


@pytest.mark.parametrize("entry", CONVERTED, ids=lambda entry: entry["file"])
def test_checksums_are_theirs_when_read_and_true_xxh64_when_written(entry, there, tmp_path):
    theirs = SeekableFile(there / entry["file"])
    for i, frame in enumerate(frames(there / entry["file"])):
        if theirs.table.checksums:
            assert theirs.table.checksums[i] == core.fnv1a_low32(frame)
    ours = tmp_path / "ours.zst"
    run(["convert", entry["source"], "-o", str(ours), *entry["args"]])
    table = SeekableFile(ours).table
    for i, frame in enumerate(frames(ours)):
        if table.checksums:
            assert table.checksums[i] == core.xxh64(frame) & 0xFFFFFFFF


@pytest.mark.parametrize("entry", SIDECARS, ids=lambda entry: entry["file"])
def test_sidecars_and_fingerprints_are_theirs_byte_for_byte(entry, there, tmp_path):
    if not entry["exists"]:
        return
    path = there / entry["file"]
    data = path.read_bytes()
    stamp = fingerprint_of(
        entry["file"].encode(), entry["size"], entry["mtime_ns"], entry["ino"], entry["dev"],
        lambda offset, length: data[offset : offset + length],
    )  # fmt: skip
    recorded = bytes.fromhex(entry["sidecar_hex"])
    assert stamp == recorded[16:48]
    assert stamp.hex() == entry["fingerprint"]
    out = str(tmp_path / "sidecar")
    if entry["file"].endswith(".zst"):
        seekable_index(SeekableFile(path), out, rebuild=True)
    else:
        plain_index(LocalFile(path), out, rebuild=True)
    built = Path(out).read_bytes()
    assert built[:16] == recorded[:16]
    assert built[48:] == recorded[48:]  # the fingerprint holds inode and time of the copy here


@pytest.mark.parametrize("known", ANSWERS["fingerprint"], ids=lambda known: known["basename"])
def test_synthetic_fingerprints(known):
    data = b"a\nb\nc\n" if known["size"] == 6 else bytes((31 * i + 7) % 256 for i in range(known["size"]))
    stamp = fingerprint_of(
        known["basename"].encode(), known["size"], known["mtime_ns"], known["ino"], known["dev"],
        lambda offset, length: data[offset : offset + length],
    )  # fmt: skip
    assert stamp.hex() == known["digest"]


def test_a_recorded_sidecar_with_the_right_fingerprint_is_used(there):
    entry = next(entry for entry in SIDECARS if entry["file"] == "r20.jsonl")
    file = LocalFile(there / "r20.jsonl")
    index = plain_index(file, rebuild=True)
    stamp = Path(file.name + PLAIN.suffix).read_bytes()[16:48]
    recorded = bytearray.fromhex(entry["sidecar_hex"])
    recorded[16:48] = stamp
    Path(file.name + PLAIN.suffix).write_bytes(recorded)
    again = plain_index(file)
    assert again.count == index.count == 20
    assert Path(file.name + PLAIN.suffix).read_bytes() == recorded
    assert SEEKABLE.suffix == ".shuflr-idx-zst"


# Columns that the public program writes as null and ours as values.
RICHER = {"d", "dict", "st", "ts"}


@pytest.mark.parametrize("entry", PARQUET, ids=lambda entry: " ".join(entry["args"]))
def test_parquet_becomes_the_recorded_lines(entry, there, tmp_path, monkeypatch):
    monkeypatch.chdir(there / "parquet")
    arguments = list(entry["args"])
    arguments[arguments.index("-o") + 1] = out = str(tmp_path / "o.jsonl.zst")
    assert run(arguments) == entry["exit"]
    if entry["exit"]:
        assert not os.path.exists(out)
        return
    got = b"".join(frames(Path(out))).splitlines()
    want = bytes.fromhex(entry["content_hex"]).splitlines()
    if not any(b'"dict":' in line for line in want):
        assert got == want
        return
    for mine, theirs in zip(got, want):
        richer, poorer = json.loads(mine), json.loads(theirs)
        assert list(richer) == list(poorer)
        assert all(poorer[name] is None for name in RICHER)
        for name in RICHER:
            mine = mine.replace(
                json.dumps({name: richer[name]}, separators=(",", ":"))[1:-1].encode(), f'"{name}":null'.encode()
            )
        assert mine == theirs


def test_the_installed_command_streams_and_ends_quietly_when_its_reader_leaves(there):
    command = [sys.executable, "-c", "from shuflr.cli import main; main()"]
    whole = subprocess.run([*command, "-s", "none", "r20.jsonl"], stdout=subprocess.PIPE, check=True)
    assert whole.stdout == (there / "r20.jsonl").read_bytes()
    endless = subprocess.Popen(
        [*command, "stream", "--epochs", "0", "r20.f20.jsonl.zst"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert endless.stdout is not None and endless.stderr is not None
    endless.stdout.read(100)
    endless.stdout.close()
    assert endless.stderr.read() == b""
    assert endless.wait(10) in (0, -13)
