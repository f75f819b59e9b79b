"""The example of an environment of one's own: short, and trained by running it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roll.config import load
from roll.pipelines.agentic import run_agentic
from tests.e2e import broken_envs
from tests.e2e.support import PRETRAIN, ROOT, rows, start

EXAMPLE = ROOT / "examples" / "custom_env.py"


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example wrote."""
    folder = tmp_path_factory.mktemp("custom_env")
    words = [f"pretrain={PRETRAIN}", "output_dir=out", "max_steps=5", "eval_steps=5"]
    words += ["rollout_batch_size=64", "train_env_manager.env_groups=8"]
    done = start([sys.executable, str(EXAMPLE), *words], folder)
    assert done.returncode == 0, done.stderr
    assert "validation success" in done.stdout
    return folder / "out"


def test_the_example_is_under_sixty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.exhaustive
def test_running_the_example_trains_on_it(output_dir: Path) -> None:
    recorded = rows(output_dir)
    assert [row["step"] for row in recorded] == [0, 1, 2, 3, 4, 5, 5]
    assert all(row["batch/samples"] == 64 and row["rollout/errors"] == 0 for row in recorded if "batch/samples" in row)


@pytest.mark.exhaustive
def test_five_steps_already_show_in_the_reward(output_dir: Path) -> None:
    before, after = (row["val/reward"] for row in rows(output_dir) if "val/reward" in row)
    assert after > before + 0.1


@pytest.mark.exhaustive
def test_a_run_can_be_started_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    managers = {"train_env_manager": {"tags": ["steady"], "env_groups": 2, "group_size": 4}}
    managers["val_env_manager"] = {"tags": ["steady"], "env_groups": 4, "group_size": 1}
    assert broken_envs.Steady.__name__ == "Steady"  # importing the module has registered it
    summary = run_agentic(load({**managers, "pretrain": PRETRAIN, "max_steps": 1, "progress": "none"}))
    assert summary.steps == 1 and summary.checkpoint == Path("output/checkpoints/step=000001")
    assert summary.checkpoint.is_dir() and summary.before.keys() == summary.after.keys() >= {"val/success"}
