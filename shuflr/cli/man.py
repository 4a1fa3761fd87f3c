"""`shuflr man`: a manual page in roff, made from the same parsers that read the command line."""

import argparse

from shuflr.cli import COMMANDS, usage
from shuflr.cli.completions import parsers
from shuflr.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subcommand", nargs="?", metavar="SUBCOMMAND", help="default: the command itself")


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("\n.", "\n\\&.").replace("'", "\\(aq")


def _options(parser: argparse.ArgumentParser) -> "list[str]":
    lines = []
    for action in parser._actions:
        names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        value = f" {action.metavar}" if action.option_strings and isinstance(action.metavar, str) else ""
        choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
        lines += [".TP", f".B {_roff(names + value)}", _roff((action.help or "") + choices)]
    return lines


def page(name: "str | None") -> str:
    """The page of a subcommand, or of the whole command."""
    title = "SHUFLR" if name is None else f"SHUFLR-{name.upper()}"
    lines = [f'.TH "{title}" "1" "" "shuflr" "User Commands"', ".SH NAME"]
    if name is None:
        lines += ["shuflr \\- corpora larger than memory in shuffled order"]
        lines += [".SH COMMANDS", ".nf", _roff(usage()), ".fi"]
    else:
        parser = parsers()[name]
        synopsis = " ".join(parser.format_usage().split())[len("usage: ") :]
        lines += [f"shuflr\\-{name} \\- {_roff(COMMANDS[name].summary)}", ".SH SYNOPSIS", _roff(synopsis)]
        lines += [".SH OPTIONS", *_options(parser)]
    lines += [
        ".SH EXIT STATUS",
        _roff("0 success; 3 unsafe (analyze --strict); 64 usage; 65 damaged data; 66 no such input; 69 unavailable; 70 "
              "other failures; 73 output cannot be created; 77 not permitted."),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def run(arguments: argparse.Namespace) -> int:
    if arguments.subcommand is not None and arguments.subcommand not in COMMANDS:
        raise InputError(f"there is no command {arguments.subcommand!r}")
    print(page(arguments.subcommand), end="")
    return 0
