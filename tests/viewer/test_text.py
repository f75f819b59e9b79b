"""The review in a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.cli.app import main
from roll.trajectories.model import Status

from .pages import answer, make_trajectory
from .test_server import store


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["view", *words])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_text_has_evaluations_failures_and_the_episodes_that_are_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, 2, [answer(7, 0, right=True), answer(8, 0, right=False)], "val")
    broken = make_trajectory(3, status=Status.ERROR_ENV, error="boom\x1b[2J\nagain", score=None, success=False)
    store(tmp_path, 3, [broken, make_trajectory(4)])
    code, out, _ = said([str(tmp_path), "--text", "--where", "?outcome=broken"], capsys)
    assert code == 0 and "\x1b" not in out
    assert "2         2   50.0%     0.60  arithmetic" in out
    assert "1 × error_env  boom\\x1b[2J again" in out
    assert "1 episodes are chosen" in out and "SimpleSokoban val-3/0" in out and "val-4/0" not in out


def test_a_place_without_episodes_is_an_error_that_says_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        code, out, err = said([str(path), "--text"], capsys)
        assert (code, out) == (2, "") and "name the output_dir of a run" in err
