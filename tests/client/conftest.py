"""One `shuflr serve` for the client's tests, and what it serves in the order of each mode."""

import subprocess
import sys

import pytest

from tests.conftest import wait_until
from tests.server.conftest import lines, write_corpus
from tests.server.serve_command import ServeCommand


class Served:
    """A running server with the dataset `corpus`, of some 60 frames."""

    def __init__(self, command, path, socket, records):
        self.command, self.path, self.socket, self.records = command, path, socket, records
        self.http = "{}:{}".format(*command.address("http"))
        self.wire = "{}:{}".format(*command.address("wire"))

    @property
    def urls(self):
        return [
            f"http://{self.http}/corpus", f"shuflr://{self.wire}/corpus", f"http+unix://{self.socket}/corpus",
            f"shuflr+unix://{self.socket}/corpus",
        ]  # fmt: skip

    def streamed(self, *arguments):
        """The records that the command line gives for the same file."""
        run = [sys.executable, "-c", "from shuflr.cli import main; main()", "stream", self.path, *arguments]
        return subprocess.run(run, stdout=subprocess.PIPE, check=True).stdout.split(b"\n")[:-1]


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    records = lines(3000)
    path = write_corpus(folder / "corpus.jsonl.zst", records, frame_size=1500)
    unix = folder / "serve.sock"
    arguments = ["--http", "127.0.0.1:0", "--wire", "127.0.0.1:0", "--unix", unix, "--dataset", f"corpus={path}"]
    with ServeCommand(*arguments, ready=3) as command:
        served = Served(command, path, unix, [record[:-1] for record in records])
        assert wait_until(lambda: counted(served))
        yield served


def counted(served):
    """Whether the server has counted its records, which it does in the background: then it tells lengths."""
    from shuflr import Dataset

    dataset = Dataset(served.urls[0])
    iter(dataset)
    try:
        return len(dataset) > 0
    except TypeError:
        return False
