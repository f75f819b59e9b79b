"""The toy policy really learns to be silent where that pays, and the run says so; by default it does not pay."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.pipelines.agentic import run_agentic
from tests.e2e.support import rows, small_config

LEARN_FAST = {
    "env_modules": "[tests.e2e.broken_envs]",
    "max_steps": 11,
    "save_steps": 0,
    "eval_steps": 0,
    "rollout_batch_size": 64,
    "train_env_manager.env_groups": 8,
    "train_env_manager.group_size": 8,
    "actor_train.training_args.learning_rate": 1e-3,
    "adv_estimator": "grpo",
    "reward_normalization": "{grouping: state, method: mean_std}",
    "progress": "lines",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("tag", "learns"), [("taxed_but_free_when_silent", True), ("taxed", False)])
def test_silence_is_learnt_and_warned_about_only_where_it_pays(
    tag: str, learns: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tags = {"train_env_manager.tags": f"[{tag}]", "val_env_manager.tags": f"[{tag}]"}
    run_agentic(small_config(tmp_path / "out", **LEARN_FAST, **tags))
    valid = [row["rollout/env/action_is_valid"] for row in rows(tmp_path / "out") if "rollout/reward" in row]
    said = "".join(capfd.readouterr())
    assert (valid[-1] < 0.1) is learns and (valid[-1] > 0.9) is not learns
    assert ("earns more by answering less" in said) is learns
