"""The peers as fixtures. Each test process keeps one interpreter of either program running and calls it many times."""

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# The peers' interpreters load these files as plain scripts from here, so the tests import them the same way.
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))

import peers  # noqa: E402
from driver import Driver  # noqa: E402
from recording_server import RecordingServer  # noqa: E402

ENGINE_SLOTS = 4
ENGINE_START_SECONDS = 60.0


def interpreter_of(name):
    try:
        return peers.peer_python(name)
    except peers.NoPython as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def public(tmp_path_factory):
    """The public project's `saturate` 0.2.0 in an interpreter of its own."""
    with Driver(
        "the public saturate",
        interpreter_of("saturate"),
        peers.environment_variables(),
        tmp_path_factory.mktemp("public"),
    ) as driver:
        yield driver


def our_driver(cwd):
    variables = dict(peers.environment_variables(), PYTHONPATH=str(peers.ROOT))
    return Driver("ours", sys.executable, variables, cwd)


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """This checkout's `saturate` in an interpreter of its own."""
    with our_driver(tmp_path_factory.mktemp("ours")) as driver:
        yield driver


@pytest.fixture
def mortal(tmp_path):
    """Makes a fresh interpreter of either program ("ours" or "public"), to be killed."""
    opened = []

    def make(which):
        cwd = tmp_path / f"mortal-{len(opened)}"
        cwd.mkdir()
        if which == "ours":
            driver = our_driver(cwd)
        else:
            driver = Driver("the public saturate", interpreter_of("saturate"), peers.environment_variables(), cwd)
        opened.append(driver.__enter__())
        return opened[-1]

    yield make
    for driver in opened:
        driver.kill()
        driver.__exit__(None, None, None)


@pytest.fixture
def server():
    with RecordingServer() as recording:
        yield recording


class Engine:
    """A llama.cpp server in a process of its own: `url` is its root, `endpoint` what pump is given."""

    def __init__(self, url, slots):
        self.url = url
        self.endpoint = url + "/v1"
        self.slots = slots

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return response.read().decode("utf-8")


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    """A real llama.cpp server on a tiny random model."""
    python = interpreter_of("llamacpp")
    place = tmp_path_factory.mktemp("llamacpp")
    model = place / "tiny.gguf"
    variables = peers.environment_variables()
    subprocess.run(
        [python, str(HERE / "llamacpp_model.py"), str(model)], check=True, env=variables, cwd=str(place), timeout=120
    )
    log = place / "server.log"
    with open(log, "wb") as said:
        process = subprocess.Popen(
            [python, str(HERE / "llamacpp_server.py"), str(model), str(ENGINE_SLOTS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env=variables,
            cwd=str(place),
        )
    overdue = threading.Timer(ENGINE_START_SECONDS, process.kill)
    overdue.start()
    try:
        url = process.stdout.readline().decode("utf-8").strip()
        overdue.cancel()
        if not url:
            pytest.fail("llama.cpp did not start:\n" + log.read_text(encoding="utf-8", errors="replace")[-4000:])
        yield Engine(url, ENGINE_SLOTS)
    finally:
        overdue.cancel()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=20)
        process.stdout.close()
