"""The journal: what was appended is read back, up to the first tear; what has a writer is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from saturate.sinks import journal
from saturate.sinks.journal import Owner, Segment
from saturate.sinks.layout import PartNames

ME = Owner.of(os.getpid())
PART = "part-1796070304206-000000-97cd3504.parquet"


def segment_with(directory: Path, *rows: bytes) -> Segment:
    segment = Segment.create(str(directory), PART, ME)
    for row in rows:
        segment.append([row])
    return segment


def test_rows_are_read_back_in_order_with_their_owner(tmp_path: Path) -> None:
    segment = segment_with(tmp_path, b"one", b"", b"three" * 1000)
    assert journal.read(segment.path) == (ME, [b"one", b"", b"three" * 1000])
    assert segment.part == PART
    segment.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_torn_tail_is_cut_wherever_it_is_torn(tmp_path: Path) -> None:
    segment = segment_with(tmp_path, b"first", b"second")
    segment.close()
    whole = Path(segment.path).read_bytes()
    start_of_second = len(whole) - len(b"second") - 8
    for length in range(len(whole)):
        Path(segment.path).write_bytes(whole[:length])
        rows = journal.read(segment.path)[1]
        if length < start_of_second:
            assert rows in ([], [b"first"])
        else:
            assert rows == [b"first"]


def test_a_damaged_frame_ends_the_journal_without_an_error(tmp_path: Path) -> None:
    segment = segment_with(tmp_path, b"first", b"second", b"third")
    segment.close()
    data = bytearray(Path(segment.path).read_bytes())
    data[data.index(b"second")] ^= 1
    Path(segment.path).write_bytes(data)
    assert journal.read(segment.path)[1] == [b"first"]


def test_zeros_after_a_loss_of_power_are_not_rows(tmp_path: Path) -> None:
    segment = segment_with(tmp_path, b"first")
    segment.close()
    with open(segment.path, "ab") as file:
        file.write(bytes(4096))
    assert journal.read(segment.path)[1] == [b"first"]


def test_a_failed_append_is_cut_off_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = segment_with(tmp_path, b"first")
    write = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if write(descriptor, data[: len(data) // 2]):
            raise OSError(28, "No space left on device")
        return 0

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            segment.append([b"second", b"third"])
    assert journal.read(segment.path)[1] == [b"first"]
    segment.append([b"second", b"third"])
    assert journal.read(segment.path)[1] == [b"first", b"second", b"third"]
    segment.discard()


def test_a_segment_with_a_writer_cannot_be_adopted_and_one_without_can_be_once(tmp_path: Path) -> None:
    segment = segment_with(tmp_path, b"row")
    assert Segment.adopt(segment.path) is None
    segment.close()
    adopted = Segment.adopt(segment.path)
    assert adopted is not None
    assert Segment.adopt(segment.path) is None
    adopted.discard()
    assert Segment.adopt(segment.path) is None


def test_an_owner_is_gone_only_when_its_process_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner.of(child.pid)
    assert not owner.is_gone()
    child.communicate(b"\n")
    assert owner.is_gone()
    assert not Owner(owner.pid, owner.started, "another container").is_gone()


def test_a_reused_process_number_is_not_the_owner() -> None:
    assert Owner(os.getpid(), "long ago", ME.pid_space).is_gone()


def test_segments_are_found_by_name_and_strangers_ignored(tmp_path: Path) -> None:
    segment = segment_with(tmp_path)
    (tmp_path / ".new-123").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    assert journal.segments(str(tmp_path)) == [segment.path]
    assert journal.segments(str(tmp_path / "missing")) == []
    segment.discard()


def test_what_a_writer_killed_while_it_created_a_segment_left_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "_journal"
    directory.mkdir()
    (directory / ".new-123").write_bytes(b"")
    journal.remove_if_empty(str(directory))
    assert not directory.exists()


def test_a_segment_is_created_while_others_remove_what_is_empty(tmp_path: Path) -> None:
    directory = str(tmp_path / "journal")
    script = (
        "import sys, time; from saturate.sinks import journal\n"
        "print(flush=True)\n"
        "end = time.monotonic() + 60\n"
        "while time.monotonic() < end: journal.remove_if_empty(sys.argv[1])\n"
    )
    remover = subprocess.Popen(
        [sys.executable, "-c", script, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert remover.stdout is not None
        remover.stdout.readline()
        for n in range(300):
            segment = Segment.create(directory, f"part-{n}-000000-00000000.parquet", Owner.of(os.getpid()))
            assert os.path.exists(segment.path)
            segment.discard()
    finally:
        remover.kill()
        remover.communicate()


def test_part_names_sort_in_the_order_in_which_they_were_made() -> None:
    names = PartNames()
    made = [names.next() for _ in range(1000)]
    assert made == sorted(made)
    assert len(set(made)) == 1000


AHEAD = "part-9999999999000-000000-aaaaaaaa.parquet"


@pytest.mark.parametrize("there", [AHEAD, "part-2.parquet", "part-17960703042060-000000-aaaaaaaa.parquet"])
def test_part_names_sort_after_those_of_a_writer_whose_clock_is_ahead(there: str) -> None:
    names = PartNames()
    early = [names.next() for _ in range(3)]
    names.follow(["part-1796070304206-000000-aaaaaaaa.parquet", "part-other.parquet", there])
    late = [names.next() for _ in range(3)]
    moved = [names.moved(name) for name in (*early, *late)]
    assert moved[3:] == late
    assert [there, *moved] == sorted([there, *moved])


def test_a_name_that_is_late_enough_is_not_moved() -> None:
    names = PartNames()
    names.follow([])
    names.follow(["part-1.parquet", "part-.parquet"])
    name = names.next()
    assert names.moved(name) == name
    assert name.startswith("part-1")


def test_a_segment_may_be_renamed_and_keeps_its_rows(tmp_path: Path) -> None:
    rows = [b"one", b"two"]
    segment = segment_with(tmp_path, *rows)
    segment.rename(AHEAD)
    assert segment.part == AHEAD
    assert journal.segments(str(tmp_path)) == [segment.path]
    assert journal.read(segment.path)[1] == rows
    segment.discard()
    assert journal.segments(str(tmp_path)) == []
