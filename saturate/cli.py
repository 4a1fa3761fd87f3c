"""The `saturate` command: one subcommand a file, mounted here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Optional

from saturate import __version__, compact, demo
from saturate.simulate import command as simulate


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command line; returns the exit status (130 after Ctrl-C)."""
    parser = argparse.ArgumentParser(prog="saturate", description="Every row of a dataset through a model.")
    parser.add_argument("--version", action="version", version=f"saturate {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    simulator = commands.add_parser("simulate", help="a model server without a model, for tests and measurements")
    simulate.add_arguments(simulator)
    simulator.set_defaults(run=simulate.run)

    shown = commands.add_parser("demo", help="the main job on real rows, killed midway and resumed")
    demo.add_arguments(shown)
    shown.set_defaults(run=demo.run)

    compacted = commands.add_parser("compact", help="write an output again with few parts")
    compact.add_arguments(compacted)
    compacted.set_defaults(run=compact.run)

    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
