"""Log lines on stderr: for a user who configured no logging, and never in the way of one who did."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from saturate.report.console import speak_on_stderr


@pytest.fixture
def as_started():
    """Gives a function that makes logging as in a program that has not touched it; the test calls it, since the
    test runner adds its own handlers after the fixtures."""
    patch = pytest.MonkeyPatch()

    def start() -> logging.Logger:
        ours = logging.getLogger("saturate")
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.setattr(ours, "handlers", [])
        patch.setattr(ours, "propagate", True)
        patch.setattr(ours, "level", logging.NOTSET)
        # `isEnabledFor` remembers answers that were given at another level.
        ours.setLevel(logging.NOTSET)
        return ours

    level = logging.getLogger("saturate").level
    yield start
    patch.undo()
    logging.getLogger("saturate").setLevel(level)


def test_without_any_configuration_lines_go_to_stderr_with_a_prefix(as_started, capsys):
    logger = as_started()
    speak_on_stderr()
    logger.info("done: %d ok", 3)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[pump] done: 3 ok\n")


def test_calling_it_again_does_not_double_the_lines(as_started, capsys):
    logger = as_started()
    for _ in range(3):
        speak_on_stderr()
    logger.warning("once")
    assert capsys.readouterr().err == "[pump] once\n"


@pytest.mark.parametrize("name", [None, "saturate"])
def test_a_users_own_configuration_is_left_alone(as_started, name, capsys):
    logger, heard = as_started(), io.StringIO()
    logging.getLogger(name).handlers.append(logging.StreamHandler(heard))
    speak_on_stderr()
    logger.warning("mine")
    assert heard.getvalue() == "mine\n"
    assert capsys.readouterr().err == ""
    assert logger.level == logging.NOTSET


def test_a_replaced_stderr_gets_the_lines(as_started, monkeypatch):
    logger = as_started()
    speak_on_stderr()
    other = io.StringIO()
    monkeypatch.setattr(sys, "stderr", other)
    logger.warning("here")
    assert other.getvalue() == "[pump] here\n"
