"""The writer starts wherever Python runs, and never runs the user's program again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from saturate.sinks import ParquetSink, existing_ids

Start = Callable[..., "subprocess.Popen[str]"]

# Notes each time it runs. There is no `__main__` guard on purpose.
SCRIPT = """
import sys
from saturate.sinks import ParquetSink
print("running")
with ParquetSink(sys.argv[1]) as sink:
    sink.append({"id": "r1", "error": None, "text": "x"})
print("done")
"""


def ran_once(process: subprocess.Popen[str]) -> bool:
    output, errors = process.communicate(SCRIPT if process.stdin else None)
    assert process.returncode == 0, errors
    return output == "running\ndone\n" and errors == ""


def test_from_a_script_without_a_main_guard(out: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert ran_once(process)
    assert existing_ids(out) == {"r1"}


def test_from_the_command_line(out: Path, program: Start) -> None:
    assert ran_once(program(SCRIPT, out))
    assert existing_ids(out) == {"r1"}


def test_from_standard_input(out: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-", out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert ran_once(process)
    assert existing_ids(out) == {"r1"}


def test_from_a_directory_with_files_named_like_the_standard_library(out: Path, tmp_path: Path, program: Start) -> None:
    for name in ("socket", "pickle", "types", "struct", "json", "saturate"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    process = program("import sys\ndel sys.path[0]\n" + SCRIPT, out)
    assert ran_once(process)


def test_inside_a_running_event_loop(out: Path, program: Start) -> None:
    body = SCRIPT.replace("\n", "\n    ")
    assert ran_once(program(f"import asyncio\nasync def main():\n    {body}\nasyncio.run(main())", out))
    assert existing_ids(out) == {"r1"}


def append_one(out: Path, id_: str) -> None:
    with ParquetSink(out) as sink:
        sink.append({"id": id_, "error": None})


def test_from_a_thread(out: Path) -> None:
    thread = threading.Thread(target=append_one, args=(out, "r1"))
    thread.start()
    thread.join()
    assert existing_ids(out) == {"r1"}


POOL = """
import multiprocessing, sys
from saturate.sinks import ParquetSink, existing_ids

def work(number):
    assert multiprocessing.current_process().daemon
    with ParquetSink(sys.argv[1]) as sink:
        sink.append({"id": f"r{number}", "error": None})

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    with multiprocessing.Pool(2) as pool:
        pool.map(work, range(4))
    print(sorted(existing_ids(sys.argv[1])))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_from_daemonic_pool_workers_under_every_start_method(out: Path, tmp_path: Path, method: str) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    process = subprocess.run(
        [sys.executable, tmp_path / "pool.py", out, method], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "['r0', 'r1', 'r2', 'r3']\n"


def test_a_sink_used_in_a_forked_child_starts_a_writer_of_its_own(out: Path) -> None:
    with ParquetSink(out) as sink:
        sink.append({"id": "parent", "error": None, "bad": object()})
        child = os.fork()
        if child == 0:
            try:
                assert sink.rows_demoted == 0
                sink.append({"id": "child", "error": None})
                sink.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sink.append({"id": "parent again", "error": None})
        sink.flush()
        assert sink.rows_demoted == 1
    assert existing_ids(out) == {"parent", "child", "parent again"}


def test_a_writer_ends_with_its_program_although_a_forked_child_lives_on(out: Path, program: Start) -> None:
    process = program(
        "import os, sys, time\nfrom saturate.sinks import ParquetSink\nsink = ParquetSink(sys.argv[1])\n"
        "sink.append({'id': 'r1', 'error': None})\n"
        "child = os.fork()\nif child == 0:\n    time.sleep(60)\nprint(child, flush=True)\ntime.sleep(60)\n",
        out,
    )
    assert process.stdout is not None and process.stderr is not None
    child = int(process.stdout.readline())
    for _ in range(1000):
        if list(out.glob("_journal/*.journal")):
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert ParquetSink(out).existing_ids() == {"r1"}
    os.kill(child, signal.SIGKILL)
    process.stdout.close()
    process.stderr.close()


def test_importing_the_package_and_making_a_sink_starts_nothing(out: Path, program: Start) -> None:
    process = program(
        "import sys, threading, os\nfrom saturate.sinks import ParquetSink\nsink = ParquetSink(sys.argv[1])\n"
        "sink.existing_ids()\nsink.flush()\n"
        "print(threading.active_count(), 'pyarrow' in sys.modules, os.path.exists(sys.argv[1]))\n",
        out,
    )
    output, errors = process.communicate()
    assert output == "1 False False\n", errors


def test_no_interpreter_is_a_clear_error(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match="sys.executable"):
        ParquetSink(out).append({"id": "r1", "error": None})
