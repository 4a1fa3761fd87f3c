"""The test's end of `drive.py`: a program in another interpreter, called like a local one."""

import pickle
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("drive.py")


class DrivenError(Exception):
    """The call raised in the other interpreter; the text is its traceback."""


class Driver:
    """One interpreter running `drive.py`; a context manager. `label` names the program in messages.

    `variables` is the whole environment of the process, `cwd` a directory outside the checkout.
    """

    def __init__(self, label, python, variables, cwd):
        self.label = label
        self._command = [python, str(SCRIPT)]
        self._variables = variables
        self._cwd = str(cwd)
        self._process = None

    def __repr__(self):
        return self.label

    def __enter__(self):
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._variables,
            cwd=self._cwd,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc):
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def start(self, name, *arguments, **keywords):
        """Sends a call without waiting for its answer."""
        pickle.dump((name, arguments, keywords), self._process.stdin, protocol=4)
        self._process.stdin.flush()

    def answer(self):
        """Waits for the answer of the last call."""
        try:
            succeeded, value = pickle.load(self._process.stdout)
        except EOFError:
            raise DrivenError(f"{self.label} ended with code {self._process.wait()} before it answered")
        if not succeeded:
            raise DrivenError(f"{self.label} raised\n{value}")
        return value

    def call(self, name, *arguments, **keywords):
        self.start(name, *arguments, **keywords)
        return self.answer()

    def kill(self):
        """SIGKILL to the interpreter itself, as the system's memory killer does it; its children are left to notice."""
        self._process.kill()
        self._process.wait()

    def pump(self, rows, endpoint, output, **options):
        return self.call("pump", rows, endpoint, str(output), **options)

    def existing_ids(self, output, retry_errors=False):
        return self.call("existing_ids", str(output), retry_errors=retry_errors)

    def read_output(self, output):
        return self.call("read_output", str(output))
