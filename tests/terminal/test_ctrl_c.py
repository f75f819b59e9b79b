"""Ctrl-C, pressed on a real pseudo-terminal in every stage of every program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rings import exhaustive_but
from tests.terminal.conftest import Seen
from tests.terminal.programs import EXAMPLES, HERE, ROOT, command, held
from tests.terminal.terminal import CTRL_C, Terminal

STAGES = ("rollout", "log_probs", "update", "weight_sync", "eval", "checkpoint")


def press_ctrl_c(words: list[str], folder: Path, sign: str, **variables: str) -> str:
    """Press it when ``sign`` is on the screen; check that the program ends as Ctrl-C should; return what it left."""
    with Terminal(words, folder, PYTHONPATH=f"{ROOT}:{HERE}", **variables) as terminal:
        terminal.see(sign)
        terminal.press(CTRL_C)
        status = terminal.finish()
        left = terminal.left_behind
        assert status == 130, left
        assert "Traceback" not in left and "\x1b" not in left, left
        terminal.assert_given_back()
        return left


@pytest.mark.parametrize("stage", exhaustive_but(STAGES, "rollout"))
def test_a_training_run_keeps_the_step_that_is_complete(stage: str, tmp_path: Path) -> None:
    words = command("agentic", "env_modules=[held]", "eval_steps=1")
    left = press_ctrl_c(words, tmp_path, f"● {stage.replace('_', '-')}", ROLL_TEST_HOLD=stage)
    saved = sorted(path.name for path in tmp_path.glob("out/checkpoints/*"))
    if stage in ("rollout", "eval"):  # of the first step, and of the evaluation before it
        assert "Stopped. No step was saved" in left and saved == []
    else:
        assert "Stopped. The newest checkpoint is out/checkpoints/step=000001" in left and saved == ["step=000001"]


@pytest.mark.exhaustive
def test_an_rlvr_run_stops_in_a_rollout(tmp_path: Path) -> None:
    words = command("rlvr", "reward_modules=[held]", "eval_steps=0")
    assert "Stopped." in press_ctrl_c(words, tmp_path, "● rollout", ROLL_TEST_HOLD="rollout")


def test_an_evaluation_writes_nothing(tmp_path: Path) -> None:
    words = command("evaluation", "reward_modules=[held]")
    assert press_ctrl_c(words, tmp_path, "● eval", ROLL_TEST_HOLD="eval").splitlines()[-1] == "Stopped."
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_a_run_that_imports_a_module_stops(tmp_path: Path) -> None:
    words = command("agentic", "env_modules=[held]")
    assert press_ctrl_c(words, tmp_path, "now in import", ROLL_TEST_HOLD="import").splitlines()[-1] == "^CStopped."
    assert not (tmp_path / "out").exists()


def test_a_run_that_loads_its_model_stops(tmp_path: Path) -> None:
    words = held("roll.workers.loading:load_tokenizer", *command("agentic")[1:])
    assert "Stopped." in press_ctrl_c(words, tmp_path, "now in load_tokenizer")


@pytest.mark.exhaustive
def test_a_run_that_composes_its_configuration_stops(tmp_path: Path) -> None:
    words = held("roll.config.sources:composed_files", *command("agentic")[1:])
    assert press_ctrl_c(words, tmp_path, "now in composed_files").splitlines()[-1] == "^CStopped."


@pytest.mark.exhaustive
def test_the_export_of_a_review_stops_and_leaves_no_half_file(sokoban: Seen) -> None:
    words = held("roll.viewer.export:export", "roll", "view", "out", "--export", "half.html")
    assert press_ctrl_c(words, sokoban.folder, "now in export").splitlines()[-1] == "^CStopped."
    assert not (sokoban.folder / "half.html").exists()


@pytest.mark.exhaustive
def test_a_conversion_stops_and_leaves_no_half_folder(sokoban: Seen) -> None:
    script = str(EXAMPLES / "convert_checkpoint.py")
    words = held("roll.models.convert:_model", script, "out/checkpoints/step=000001", "stopped")
    left = press_ctrl_c(words, sokoban.folder, "now in _model")
    assert left.splitlines()[-1] == "^CStopped."
    assert not (sokoban.folder / "stopped").exists()
