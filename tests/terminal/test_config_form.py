"""``roll config form`` on a terminal: questions, an answer that cannot be used, and the file that comes of it."""

from __future__ import annotations

import sys
from pathlib import Path

from roll.config import load
from tests.terminal.terminal import Terminal

FORM = [sys.executable, "-m", "roll", "config", "form", "sokoban"]


def test_a_form_is_filled_in_and_what_it_writes_can_be_used(tmp_path: Path) -> None:
    with Terminal(FORM, tmp_path, rows=100, columns=200) as terminal:
        terminal.see("exp_name [my_sokoban]:")
        terminal.press(b"sokoban\n")
        terminal.see("choose another name.")
        terminal.press(b"mine\n\n")
        terminal.see("train_env_manager.tags [[SimpleSokoban]]:")
        terminal.press(b"[SimpleSokoban, LargerSokoban]\n?\n")
        terminal.see("by default 500.")
        terminal.press(b"many\n")
        terminal.see("max_steps: must be a whole number")
        terminal.press(b"7\n")
        terminal.see("train_env_manager.env_groups [64]:")
        terminal.press(b"15\n")
        terminal.see("cannot be shared equally by 2 tags")
        terminal.press(b"16\n")
        terminal.see("train_env_manager.group_size [4]:")
        terminal.press(b"4\n" + 20 * b"\n")
        assert terminal.finish() == 0
        terminal.assert_given_back()
        assert "mine.yaml can be used: roll train mine.yaml" in terminal.left_behind
    written, base = load(tmp_path / "mine.yaml"), load("sokoban")
    assert written.train_env_manager.tags == written.val_env_manager.tags == ["SimpleSokoban", "LargerSokoban"]
    assert (written.max_steps, written.rollout_batch_size, str(written.output_dir)) == (7, 64, "output/mine")
    assert written.actor_train == base.actor_train and written.seed == base.seed


def test_ctrl_c_writes_nothing(tmp_path: Path) -> None:
    with Terminal(FORM, tmp_path) as terminal:
        terminal.see("exp_name [my_sokoban]:")
        assert terminal.interrupt() == 130
    assert not list(tmp_path.iterdir())
