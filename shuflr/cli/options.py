"""What the subcommands' options have in common: their types, the parser that reports mistakes, the log."""

import argparse
import os
import sys
from typing import TYPE_CHECKING, Callable, NoReturn

from shuflr.errors import InputError

if TYPE_CHECKING:
    import logging

_UNITS = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12,
    "tb": 10**12, "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40,
    "tib": 2**40,
}  # fmt: skip
_LEVELS = {"error": 40, "warn": 30, "info": 20, "debug": 10, "trace": 10, "off": 60}


class _Formatter(argparse.HelpFormatter):
    """Help of a fixed width. argparse makes a formatter for every option it is told about, and would ask the terminal
    for its size each time."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)


class Parser(argparse.ArgumentParser):
    """Reports a mistake as InputError, so that it gets the exit code for usage."""

    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}\n{self.format_usage().strip()}")


def byte_size(text: str) -> int:
    """A size in bytes: a decimal number, a fraction allowed, and a unit of 1000 (k, MB) or 1024 (KiB, Mi).

    >>> byte_size("1.5KiB"), byte_size("2M")
    (1536, 2000000)
    """
    number = text.rstrip("bBkKmMgGtTiI")
    unit = text[len(number) :].lower()
    number = number.strip()
    if unit not in _UNITS or not number.replace(".", "", 1).isdigit() or not number.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 4096, 64KiB, 1.5MB")
    return int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]


def whole(low: int, high: int) -> Callable[[str], int]:
    """The type of a whole number from low to high."""

    def parse(text: str) -> int:
        if not (text.lstrip("-").isdigit() and text.isascii()) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """The type of a number from low to high."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return value

    return parse


U64 = whole(0, 2**64 - 1)
U32 = whole(0, 2**32 - 1)
COUNT = whole(0, 2**63 - 1)
THREADS = whole(0, 1024)


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=U64, metavar="N", help="decides the order; default $SHUFLR_SEED, else 0")


def seed_of(arguments: argparse.Namespace) -> int:
    """The seed given, else that of the environment, else 0."""
    if arguments.seed is not None:
        return int(arguments.seed)
    text = os.environ.get("SHUFLR_SEED", "0")
    try:
        return U64(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"SHUFLR_SEED: {error}") from None


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--progress", choices=("never", "auto", "always"), default="auto",
                        help="a bar on standard error; auto: when that is a terminal")  # fmt: skip
    add_log_level(parser)


def add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-level", choices=tuple(_LEVELS), default="info", help="default info; $SHUFLR_LOG wins")


def log(arguments: argparse.Namespace) -> "logging.Logger":
    """The package's log on standard error, from the level of SHUFLR_LOG, RUST_LOG or the flag on.

    Called where something may be said: the logging module is loaded no sooner."""
    import logging

    wanted = os.environ.get("SHUFLR_LOG") or os.environ.get("RUST_LOG") or arguments.log_level
    logger = logging.getLogger("shuflr")
    logger.setLevel(_LEVELS.get(wanted.lower(), logging.INFO))
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("shuflr: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    return logger


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_of(asked: int) -> int:
    """The number of threads asked for; 0 means one a processor."""
    return asked or cores()
