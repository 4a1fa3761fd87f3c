"""Kill it at any point and run it again: every row that was taken is there, once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from saturate.sinks import ParquetSink, SinkError, existing_ids, layout, read_output

Start = Callable[..., "subprocess.Popen[str]"]
Writers = Callable[[int], "list[int]"]

# Appends rows for ever and says after each how many there are. A row that was counted has been handed over.
ENDLESS = """
import sys
from saturate.sinks import ParquetSink
sink = ParquetSink(sys.argv[1], flush_every=int(sys.argv[2]))
for number in range(10**9):
    sink.append({"id": f"{sys.argv[3]}{number}", "error": None, "text": "x" * 200})
    print(number + 1, flush=True)
"""


def count_of(process: subprocess.Popen[str]) -> int:
    """The last whole number that the killed program printed, 0 if all were read before."""
    assert process.stdout is not None
    lines = process.stdout.read().rpartition("\n")[0].split()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()
    process.stdout.close()
    return int(lines[-1]) if lines else 0


def let_it_print(process: subprocess.Popen[str], lines: int) -> None:
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()


def records_in(out: Path) -> list[str]:
    parts = sorted(path for path in out.iterdir() if layout.is_part(path.name))
    return [id_ for part in parts for id_ in pq.read_table(part, columns=["id"]).column("id").to_pylist()]


def assert_no_trace_of_the_crash(out: Path) -> None:
    assert not (out / "_journal").exists()
    for part in filter(layout.is_part, os.listdir(out)):
        assert pq.read_table(out / part, columns=["id"]).equals(
            pq.read_table(out / layout.sidecar_of(part), columns=["id"])
        )


@pytest.mark.parametrize("rows_per_part", [7, 10_000])
def test_when_the_program_is_killed_its_writer_lands_every_row_and_ends(
    out: Path, program: Start, writers: Writers, rows_per_part: int
) -> None:
    process = program(ENDLESS, out, rows_per_part, "a")
    let_it_print(process, 300)
    (writer,) = writers(process.pid)
    process.kill()
    taken = max(300, count_of(process))
    # The next run waits for that writer, and then skips all that it landed.
    done = recover(out)
    assert len(done) >= taken
    assert sorted(records_in(out)) == sorted(done)
    assert_no_trace_of_the_crash(out)
    with pytest.raises(ProcessLookupError):
        for _ in range(500):
            os.kill(writer, 0)
            time.sleep(0.01)


@pytest.mark.parametrize("seed", range(4))
def test_when_program_and_writer_are_killed_the_next_run_lands_the_journal(
    out: Path, program: Start, seed: int
) -> None:
    chance = random.Random(seed)
    process = program(ENDLESS, out, chance.choice([5, 40, 10_000]), "a", start_new_session=True)
    let_it_print(process, chance.randrange(130, 600))
    os.killpg(process.pid, signal.SIGKILL)
    taken = count_of(process)
    sink = ParquetSink(out)
    done = sink.existing_ids()
    sink.close()
    assert len(done) >= taken
    assert sorted(records_in(out)) == sorted(done)
    assert {id_ for id_, _ in read_output(out)} == done
    assert_no_trace_of_the_crash(out)


@pytest.mark.parametrize("seed", range(3))
def test_when_the_writer_is_killed_the_program_is_told_and_the_next_run_goes_on(
    out: Path, writers: Writers, seed: int
) -> None:
    sink = ParquetSink(out, flush_every=random.Random(seed).choice([5, 1000]))
    taken = 0
    with pytest.raises(SinkError, match="ended unexpectedly.*run the same command"):
        for number in range(10**6):
            sink.append({"id": f"r{number}", "error": None})
            taken += 1
            if number == 300 + seed:
                sink.write_telemetry((0, 1), ["{}"])
                os.kill(writers(os.getpid())[0], signal.SIGKILL)
    with pytest.raises(SinkError):
        sink.flush()
    with pytest.raises(SinkError):
        sink.close()
    # All that was taken, and the one row whose append said so, once.
    assert sorted(records_in(out)) == sorted(f"r{number}" for number in range(taken + 1))
    assert_no_trace_of_the_crash(out)
    assert ParquetSink(out).existing_ids() == set(records_in(out))


@pytest.mark.parametrize("rows_per_part", [1, 3, 16, 1000])
def test_a_dead_writer_is_replaced_to_land_what_it_was_given_and_what_else_there_is(
    out: Path, writers: Writers, rows_per_part: int
) -> None:
    sink = ParquetSink(out, flush_every=rows_per_part)
    assert not sink.rescue([])
    with pytest.raises(SinkError, match="ended unexpectedly"):
        for number in range(10**6):
            sink.append({"id": f"r{number}", "error": None})
            if number == 100:
                assert not sink.rescue([])
                os.kill(writers(os.getpid())[0], signal.SIGKILL)
    assert sink.rescue({"id": f"left{each}", "error": None} for each in range(5))
    sink.append({"id": "later", "error": None})
    sink.close()
    wanted = [f"r{each}" for each in range(number + 1)] + [f"left{each}" for each in range(5)] + ["later"]
    assert sorted(records_in(out)) == sorted(wanted)
    assert_no_trace_of_the_crash(out)


def journal_of_a_killed_run(out: Path, program: Start, rows: int = 50) -> Path:
    process = program(ENDLESS, out, 10_000, "a", start_new_session=True)
    let_it_print(process, rows + 200)
    os.killpg(process.pid, signal.SIGKILL)
    count_of(process)
    return max((out / "_journal").iterdir(), key=lambda path: path.stat().st_size)


def recover(out: Path) -> set[str]:
    with ParquetSink(out) as sink:
        return sink.existing_ids()


def test_a_journal_with_a_torn_tail_is_recovered_up_to_the_tear(out: Path, program: Start) -> None:
    segment = journal_of_a_killed_run(out, program)
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    done = recover(out)
    assert done == {f"a{number}" for number in range(len(done))}
    assert len(done) >= 50


def test_an_illegible_journal_is_removed_and_is_no_error(out: Path) -> None:
    (out / "_journal").mkdir(parents=True)
    (out / "_journal" / "part-1796070304206-000000-97cd3504.journal").write_bytes(b"\0\1garbage")
    assert recover(out) == set()
    assert not (out / "_journal").exists()


def test_recovery_that_was_itself_cut_off_is_repeated_without_duplicates(out: Path, program: Start) -> None:
    segment = journal_of_a_killed_run(out, program)
    kept = segment.read_bytes()
    done = recover(out)
    part, sidecar = records_in(out), out / "_manifest"

    def put_the_journal_back() -> None:
        segment.parent.mkdir()  # it was removed after the clean end
        segment.write_bytes(kept)

    put_the_journal_back()  # killed before the journal was deleted
    assert recover(out) == done
    assert records_in(out) == part

    put_the_journal_back()  # killed between the part and its sidecar
    shutil.rmtree(sidecar)
    assert recover(out) == done
    assert records_in(out) == part
    assert_no_trace_of_the_crash(out)

    put_the_journal_back()  # killed while the part had its unfinished name
    (name,) = filter(layout.is_part, os.listdir(out))
    os.rename(out / name, out / layout.unfinished(name))
    shutil.rmtree(sidecar)
    assert recover(out) == done
    assert records_in(out) == part
    assert sorted(os.listdir(out)) == sorted(["_manifest", name])


def test_a_live_writers_journal_is_left_alone(out: Path) -> None:
    with ParquetSink(out) as live:
        live.append({"id": "live", "error": None})
        live.write_stats((0, 2), {})
        assert recover(out) == set()
        assert len(list((out / "_journal").iterdir())) == 1
    assert recover(out) == {"live"}


def test_two_shards_write_into_one_directory_and_one_may_be_killed(out: Path, program: Start) -> None:
    first = program(ENDLESS, out, 20, "a", start_new_session=True)
    second = program(ENDLESS, out, 30, "b", start_new_session=True)
    let_it_print(first, 200)
    let_it_print(second, 200)
    os.killpg(first.pid, signal.SIGKILL)
    count_of(first)
    alive = ParquetSink(out)
    assert len({id_ for id_ in alive.existing_ids() if id_[0] == "a"}) >= 200
    let_it_print(second, 50)
    second.kill()
    taken = max(250, count_of(second))
    done = alive.existing_ids()
    # The sink's writer, once started, has recovered what it found then; a new run finds the rest.
    alive.close()
    done = recover(out)
    assert len({id_ for id_ in done if id_[0] == "b"}) >= taken
    assert sorted(records_in(out)) == sorted(done)
    assert_no_trace_of_the_crash(out)


def test_a_signal_to_the_process_group_does_not_end_the_writer_before_the_program(out: Path, program: Start) -> None:
    process = program(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "import sys\nfrom saturate.sinks import ParquetSink\nsink = ParquetSink(sys.argv[1])\n"
        "sink.append({'id': 'a', 'error': None})\nprint('ready', flush=True)\ninput()\n"
        "sink.append({'id': 'b', 'error': None})\nsink.close()\n",
        out,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    let_it_print(process, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(process.pid, number)
    _, errors = process.communicate("\n")
    assert process.returncode == 0, errors
    assert existing_ids(out) == {"a", "b"}


def test_a_full_disk_pauses_the_program_then_is_a_clear_error_and_loses_nothing(out: Path, program: Start) -> None:
    process = program(
        "import resource, sys, logging\nlogging.basicConfig()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from saturate.sinks import ParquetSink, SinkError\n"
        "sink = ParquetSink(sys.argv[1], give_up_after=1.0)\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        sink.append({'id': f'r{count}', 'error': None, 'text': 'x' * 500})\n"
        "        count += 1\n"
        "except SinkError as error:\n"
        "    print(count)\n"
        "    sys.exit(str(error))\n",
        out,
    )
    output, errors = process.communicate()
    assert process.returncode == 1
    assert "sink blocked for" in errors
    assert "File too large" in errors.splitlines()[-1]
    assert "run the same command" in errors.splitlines()[-1]
    done = recover(out)
    assert len(done) >= int(output) > 0
    assert sorted(records_in(out)) == sorted(done)


def test_permission_that_comes_back_is_waited_for(out: Path) -> None:
    with ParquetSink(out, flush_every=10) as sink:
        sink.append({"id": "r0", "error": None})
        sink.flush()
        # A file where the journal wants its directory: the next segment cannot be created until it goes away.
        (out / "_journal").rename(out / "moved away")
        (out / "_journal").write_text("in the way")
        back = threading.Timer(0.3, (out / "_journal").unlink)
        back.start()
        sink.append({"id": "r1", "error": None})
        back.join()
        sink.flush()
        assert existing_ids(out) == {"r0", "r1"}


def test_ctrl_c_interrupts_an_append_that_waits_and_what_was_appended_still_lands(
    out: Path, program: Start, writers: Writers
) -> None:
    process = program(ENDLESS, out, 1, "a")
    let_it_print(process, 10)
    (writer,) = writers(process.pid)
    os.kill(writer, signal.SIGSTOP)
    time.sleep(1)  # by then it waits in append, as no segment becomes a part any more
    process.send_signal(signal.SIGINT)
    process.wait(10)
    os.kill(writer, signal.SIGCONT)  # it has the other end of stderr
    assert process.stderr is not None
    assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")
    taken = max(10, count_of(process))
    assert taken < 10_000
    assert len(recover(out)) >= taken
