"""What a command raises becomes an exit code and a message, and never a traceback where a user can act."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import typer

from roll.cli.exits import exit_code
from roll.config import ConfigError, Problem, RunError


def raiser(error: BaseException) -> Callable[[], Any]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError([Problem("max_stepz", "unknown key.", "did you mean max_steps?")]), 2, "did you mean max_steps?"),
        (typer.BadParameter("no run is there"), 2, "no run is there"),
        (RunError("The disk is full."), 3, "The disk is full."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (KeyboardInterrupt("Saved step 3."), 130, "Saved step 3."),
        (typer.Abort(), 130, "Stopped."),
    ],
)
def test_what_a_user_can_act_on_is_a_message_and_a_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(raiser(error)) == code
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err and "Traceback" not in captured.err


def test_a_package_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda: importlib.import_module("not_a_package_of_anybody")) == 3
    assert "needs the package not_a_package_of_anybody" in capsys.readouterr().err


def test_what_nobody_foresaw_keeps_its_traceback() -> None:
    for error in (ValueError("x"), RuntimeError("x"), ModuleNotFoundError("x", name="roll.nosuch")):
        with pytest.raises(type(error)):
            exit_code(raiser(error))


def test_a_command_that_goes_well_is_fine_and_one_that_counts_says_so() -> None:
    assert [exit_code(lambda: None), exit_code(lambda: 3)] == [0, 3]


def test_text_of_strangers_does_not_reach_the_terminal_as_codes(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code(raiser(RunError("red \x1b[31mtext\x1b[0m \x1b]0;title\x07")))
    assert "\x1b" not in capsys.readouterr().err
