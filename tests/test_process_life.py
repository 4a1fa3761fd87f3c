"""`pump` runs to its end wherever Python runs, and runs the user's program once: it is never imported again."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from saturate import read_output
from saturate.simulate import Simulator

ROWS = 12

# Without a `__main__` guard, on purpose. Each run of it leaves a line in the file `ran`.
JOB = """
import os, sys
from saturate import Fixed, pump
endpoint, out = sys.argv[1], sys.argv[2]
def to_request(row):
    return {"model": "m", "messages": [{"role": "user", "content": row["text"]}], "max_tokens": 2}
def parse(row, response):
    return {"n": row["n"], "pid": os.getpid()}
def job(name):
    rows = [(f"{name}-{n}", {"n": n, "text": f"row {n}"}) for n in range(12)]
    return pump(rows, to_request, parse, endpoint, out, window=Fixed(4), signal_source="none").rows_processed
with open(os.path.join(os.path.dirname(out), "ran"), "a") as file:
    file.write("ran\\n")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Simulator]:
    with Simulator(latency_s=0) as simulator:
        yield simulator


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(
    arguments: list[str], server: Simulator, out: Path, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, server.endpoint, str(out)],
        input=text,
        capture_output=True,
        text=True,
        cwd=out.parent,
        timeout=90,
    )


def assert_all_landed(out: Path, *names: str) -> None:
    assert sorted(id_ for id_, _ in read_output(out)) == sorted(f"{name}-{n}" for name in names for n in range(ROWS))
    assert not (out / "_journal").exists()
    assert (out.parent / "ran").read_text() == "ran\n"


# -- a program -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["a script", "standard input", "the command line"])
def test_from_a_program_without_a_main_guard(how: str, server: Simulator, out: Path) -> None:
    text = JOB + "print(job('a'))"
    (out.parent / "script.py").write_text(text)
    arguments = {"a script": ["script.py"], "standard input": ["-"], "the command line": ["-c", text]}[how]
    ended = run(arguments, server, out, text if how == "standard input" else None)
    assert (ended.returncode, ended.stdout) == (0, f"{ROWS}\n"), ended.stderr
    assert_all_landed(out, "a")


def test_from_a_thread_which_leaves_the_signal_handlers_alone(server: Simulator, out: Path) -> None:
    text = """
        import signal, threading
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        seen = []
        def parse(row, response):
            seen.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))
            return {}
        thread = threading.Thread(target=lambda: print(job("a")))
        thread.start()
        thread.join()
        assert seen and set(seen) == {before}, seen
        """
    ended = run(["-c", JOB + textwrap.dedent(text)], server, out)
    assert (ended.returncode, ended.stdout) == (0, f"{ROWS}\n"), ended.stderr
    assert_all_landed(out, "a")


def test_inside_a_running_event_loop(server: Simulator, out: Path) -> None:
    text = "import asyncio\nasync def main():\n    print(job('a'))\n    await asyncio.sleep(0)\nasyncio.run(main())\n"
    ended = run(["-X", "dev", "-c", JOB + text], server, out)
    assert (ended.returncode, ended.stdout) == (0, f"{ROWS}\n"), ended.stderr
    assert_all_landed(out, "a")


# -- workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_from_daemonic_pool_workers_under_every_start_method(method: str, server: Simulator, out: Path) -> None:
    text = """
        import multiprocessing
        multiprocessing.set_start_method(sys.argv[3])
        with multiprocessing.Pool(2) as pool:
            print(pool.map(job, ["a", "b", "c"], chunksize=1))
        """
    guarded = JOB.partition("with open")[0] + "if __name__ == '__main__':\n"
    main = "with open" + JOB.partition("with open")[2] + textwrap.dedent(text)
    (out.parent / "script.py").write_text(guarded + textwrap.indent(main, "    "))
    ended = subprocess.run(
        [sys.executable, "script.py", server.endpoint, str(out), method],
        capture_output=True,
        text=True,
        cwd=out.parent,
        timeout=90,
    )
    assert (ended.returncode, ended.stdout) == (0, f"{[ROWS] * 3}\n"), ended.stderr
    assert_all_landed(out, "a", "b", "c")


def test_from_the_prefork_pool_of_a_task_queue(server: Simulator, out: Path) -> None:
    """billiard is the pool of Celery's workers: forked ahead, daemonic, with a parent that supervises."""
    pytest.importorskip("billiard")
    text = """
        from billiard.pool import Pool
        pool = Pool(2)
        print(pool.map(job, ["a", "b"], chunksize=1))
        pool.close()
        pool.join()
        """
    ended = run(["-c", JOB + textwrap.dedent(text)], server, out)
    assert (ended.returncode, ended.stdout) == (0, f"{[ROWS] * 2}\n"), ended.stderr
    assert_all_landed(out, "a", "b")


def test_from_children_forked_after_the_parent_has_run_a_job_itself(server: Simulator, out: Path) -> None:
    text = """
        print(job("parent"), flush=True)
        children = []
        for name in ("a", "b"):
            child = os.fork()
            if child == 0:
                os._exit(0 if job(name) == 12 else 1)
            children.append(child)
        print([os.waitpid(child, 0)[1] for child in children])
        print(job("again"))
        """
    ended = run(["-c", JOB + textwrap.dedent(text)], server, out)
    assert (ended.returncode, ended.stdout) == (0, f"{ROWS}\n[0, 0]\n{ROWS}\n"), ended.stderr
    assert_all_landed(out, "parent", "a", "b", "again")


# -- where people type -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_a_notebook_cell_and_again_from_the_next(server: Simulator, out: Path) -> None:
    """A real kernel, which has an event loop running and a `__main__` that is no file."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    cells = [
        f"import sys; sys.argv = ['', {server.endpoint!r}, {str(out)!r}]\n" + JOB,
        "job('a')",
        "job('a'), job('b')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=90, kernel_name="python3")
    client.execute(cwd=str(out.parent))
    said = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    ]
    assert said == [f"{ROWS}", f"(0, {ROWS})"]
    assert_all_landed(out, "a", "b")


class Terminal:
    """An interactive Python on a terminal of its own."""

    def __init__(self, cwd: Path, arguments: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-i", "-q", "-", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.said = ""

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:
                    break
        assert text in self.said

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)


def test_from_a_terminal_where_the_prompt_comes_back(server: Simulator, out: Path) -> None:
    (out.parent / "job.txt").write_text(JOB)
    terminal = Terminal(out.parent, [server.endpoint, str(out)])
    try:
        terminal.wait_for(">>> ")
        terminal.type("exec(open('job.txt').read())")
        terminal.type("print('first', job('a'), 'row' + 's')")
        terminal.wait_for(f"first {ROWS} rows")
        terminal.type("print('second', job('a'), 'row' + 's')")
        terminal.wait_for("second 0 rows")
        terminal.type("raise SystemExit(7)")
        assert terminal.process.wait(30) == 7
    finally:
        terminal.close()
    assert_all_landed(out, "a")
