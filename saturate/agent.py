"""Who is running us: the product's name on the wire, and whether a coding agent reads the output."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("saturate-shuflr")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0"

USER_AGENT = f"saturate/{__version__}"

AGENT_ENV_VARS = ("CLAUDECODE", "CODEX_SANDBOX", "AI_AGENT")


def agent_mode() -> bool:
    """Whether one of `AGENT_ENV_VARS` is set and not empty: then stdout carries one JSON line and nothing else."""
    return any(os.environ.get(name) for name in AGENT_ENV_VARS)
