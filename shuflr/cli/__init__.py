"""The `shuflr` command: one file per subcommand, and here the choice among them and the exit codes.

Standard output carries data and facts; everything else goes to standard error. A file name in place of a subcommand
means `stream`. Modules are loaded when their subcommand runs, so that the command starts quickly.
"""

import os
import signal
import sys
from typing import NamedTuple, Optional

from shuflr.errors import DataError, InputError, ShuflrError

EX_OK, EX_UNSAFE, EX_USAGE, EX_DATAERR, EX_NOINPUT = 0, 3, 64, 65, 66
EX_UNAVAILABLE, EX_SOFTWARE, EX_CANTCREAT, EX_NOPERM = 69, 70, 73, 77


class Command(NamedTuple):
    """A subcommand: its module (with `add_arguments` and `run`), what it is for, and whether it is a filter, which ends
    when nobody reads its output any more."""

    module: str
    summary: str
    is_filter: bool = True


COMMANDS = {
    "stream": Command("shuflr.cli.stream", "write the records of an input to standard output, in shuffled order"),
    "serve": Command("shuflr.cli.serve", "host datasets for training workers, over HTTP and shuflr-wire/1", False),
    "convert": Command("shuflr.cli.convert", "write an input as seekable zstd, cut at records"),
    "info": Command("shuflr.cli.info", "say what a seekable file holds, from its seek table"),
    "analyze": Command("shuflr.cli.analyze", "say how well an order would mix a file, and what it costs"),
    "index": Command("shuflr.cli.index", "build the index that index-perm uses"),
    "verify": Command("shuflr.cli.verify", "read a whole file and compare everything it says about itself"),
    "completions": Command("shuflr.cli.completions", "print a completion script for a shell"),
    "man": Command("shuflr.cli.man", "print a manual page"),
}


def usage() -> str:
    """The help of the command itself."""
    lines = [
        "usage: shuflr [COMMAND] ARGUMENTS", "",
        "Streams JSON-lines corpora larger than memory in an order that the seed decides.", "",
    ]  # fmt: skip
    lines += [f"  {name:<12} {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "Without a command, `stream`. `shuflr COMMAND --help` says more.", ""]
    return "\n".join(lines)


def exit_code(error: BaseException) -> int:
    """The exit code of what went wrong (sysexits.h)."""
    from shuflr.records.atomic import CannotCreate

    table: tuple[tuple[type[BaseException], int], ...] = (
        (InputError, EX_USAGE),
        (DataError, EX_DATAERR),
        (CannotCreate, EX_CANTCREAT),
        (FileNotFoundError, EX_NOINPUT),
        (PermissionError, EX_NOPERM),
    )
    return next((code for kind, code in table if isinstance(error, kind)), EX_SOFTWARE)


def run(argv: "list[str]") -> int:
    """Runs a command line and returns its exit code; what went wrong is on standard error."""
    try:
        return _dispatch(argv)
    except KeyboardInterrupt:
        return 130
    except (ShuflrError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            return _quiet_end()
        print(f"shuflr: error: {error}", file=sys.stderr)
        return exit_code(error)
    except Exception:
        import traceback

        print("shuflr: internal error, please report it:", file=sys.stderr)
        traceback.print_exc()
        return EX_SOFTWARE


def _quiet_end() -> int:
    """The reader of standard output has left: nothing more can be said there, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EX_OK


def _dispatch(argv: "list[str]") -> int:
    if not argv:
        sys.stderr.write(usage())
        return EX_USAGE
    if argv[0] in ("-h", "--help", "--help-full") and len(argv) == 1:
        sys.stdout.write(usage())
        return EX_OK
    if argv[0] in ("-V", "--version") and len(argv) == 1:
        from importlib.metadata import version

        print(f"shuflr {version('saturate-shuflr')}")
        return EX_OK
    name, rest = _chosen(argv)
    if name != argv[0] and any(argument in COMMANDS for argument in argv):
        raise InputError("the command comes first: shuflr COMMAND ARGUMENTS")

    from importlib import import_module

    from shuflr.cli.options import Parser

    module = import_module(COMMANDS[name].module)
    parser = Parser(prog=f"shuflr {name}", description=COMMANDS[name].summary)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(rest)))


def _chosen(argv: "list[str]") -> "tuple[str, list[str]]":
    """The subcommand of a command line, and its arguments."""
    return (argv[0], argv[1:]) if argv and argv[0] in COMMANDS else ("stream", argv)


def main(argv: Optional["list[str]"] = None) -> None:
    """The console script. A reader that closes the pipe ends it as it ends `cat`."""
    arguments = sys.argv[1:] if argv is None else argv
    if COMMANDS[_chosen(arguments)[0]].is_filter:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
