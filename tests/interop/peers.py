"""The programs ours is compared with, each in a virtual environment of its own below `.venvs/` of the checkout.

An environment is made when the first test asks for it, under a file lock, and carries a stamp that names what was
installed: later runs and parallel test workers find the stamp and share it, a changed list of requirements makes it
anew, an interrupted installation has no stamp and is started over. The peers must not see our package, one of them
has the same import name: they run in another directory and with an environment that carries no Python path.
"""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venvs"
STAMP = "installed.json"
OLDEST_PYTHON = (3, 10)
INSTALL_SECONDS = 300.0

REQUIREMENTS = {
    # The public project whose storage contract and public names ours keeps.
    "saturate": ("saturate==0.2.0",),
    # The public shuflr's client, whose wheel must work against our server as it is.
    "shuflr_client": ("shuflr-client==0.1.1",),
    # llama.cpp with its HTTP server as a wheel, and what writes a model for it.
    "llamacpp": ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy>=1.26,<3"),
}

# What a peer may see of our environment: where programs, certificates, caches and the package index are configured.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
KEPT_PREFIXES = ("PIP_", "XDG_", "PYENV_")


class NoPython(Exception):
    """No interpreter on this machine is new enough for the peers."""


class PeerEnvironmentError(Exception):
    """A peer's environment could not be made; the text has the command and what it said."""


def environment_variables():
    """Variables for a peer process: ours reduced to the neutral ones, so that neither paths nor modes leak in."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES) or name.lower().endswith("_proxy")
    }


def peer_python(name):
    """Path of the interpreter of peer `name` (a key of `REQUIREMENTS`), its environment made if need be.

    Raises NoPython where no Python >= 3.10 can be had and PeerEnvironmentError where the installation fails.
    """
    requirements = REQUIREMENTS[name]
    place = ENVIRONMENTS / name
    if not _is_ready(place, requirements):
        ENVIRONMENTS.mkdir(exist_ok=True)
        with _locked(ENVIRONMENTS / (name + ".lock")):
            if not _is_ready(place, requirements):
                _make(place, requirements)
    return str(_interpreter(place))


def new_enough_python():
    """An interpreter >= 3.10: the running one if it is, else the newest found on the path or below pyenv."""
    if sys.version_info >= OLDEST_PYTHON:
        # Not sys.executable: a virtual environment of a virtual environment would lean on the first one's life.
        return getattr(sys, "_base_executable", None) or sys.executable
    found = {version: path for path in _candidates() for version in _version_of(path) if version >= OLDEST_PYTHON}
    if not found:
        raise NoPython("the peers need a Python >= 3.10, and none was found on the path or below pyenv")
    return found[max(found)]


def _candidates():
    for minor in range(10, 20):
        path = shutil.which(f"python3.{minor}")
        if path:
            yield path
    home = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    for path in glob.glob(os.path.join(glob.escape(home), "versions", "3.*", "bin", "python")):
        yield path


def _version_of(path):
    """(major, minor) as a list of one, or nothing for a name that does not run (an inactive pyenv shim)."""
    try:
        said = subprocess.run(
            [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
    return [tuple(int(part) for part in said)]


def _interpreter(place):
    return place / "bin" / "python"


def _is_ready(place, requirements):
    try:
        stamp = json.loads((place / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    # A removed base interpreter leaves a dangling link behind: exists() follows it.
    return stamp.get("requirements") == list(requirements) and _interpreter(place).exists()


@contextlib.contextmanager
def _locked(path):
    with open(path, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released by the system even if this process is killed
        yield


def _make(place, requirements):
    shutil.rmtree(place, ignore_errors=True)
    python = new_enough_python()
    _run([python, "-m", "venv", str(place)], place)
    pip = [str(_interpreter(place)), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run(pip + ["install", "--only-binary", ":all:"] + list(requirements), place)
    stamp = {"requirements": list(requirements), "python": python}
    partial = place / (STAMP + ".partial")
    partial.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, place / STAMP)


def _run(command, place):
    said = " ".join(command)
    try:
        done = subprocess.run(
            command,
            env=environment_variables(),
            cwd=str(ENVIRONMENTS),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise PeerEnvironmentError(f"cannot make the test environment {place}: {said}: {failure}") from failure
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace")
        raise PeerEnvironmentError(
            f"cannot make the test environment {place}: exit {done.returncode} of: {said}\n{output}"
        )
