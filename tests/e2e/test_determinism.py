"""The same seed gives the same run, whatever the threads do; another seed gives another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.pipelines.agentic import run_agentic
from tests.e2e.support import rows, same, small_config, train_state

TWO_STEPS = {"max_steps": 2, "eval_steps": 0}
LATE = {
    "env_modules": "[tests.e2e.broken_envs]",
    "train_env_manager.tags": "[late]",
    "val_env_manager.tags": "[steady]",
}


def outcome(output_dir: Path, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    run_agentic(small_config(output_dir, **TWO_STEPS, **changes))
    return rows(output_dir), train_state(output_dir, 2)


def test_the_order_in_which_episodes_finish_changes_nothing(tmp_path: Path) -> None:
    first_rows, first_state = outcome(tmp_path / "first", **LATE)
    again_rows, again_state = outcome(tmp_path / "again", **LATE)
    assert first_rows == again_rows
    assert same(first_state, again_state)


@pytest.mark.exhaustive
def test_another_seed_is_another_run(tmp_path: Path) -> None:
    first_rows, first_state = outcome(tmp_path / "first", **LATE, seed=1)
    other_rows, other_state = outcome(tmp_path / "other", **LATE, seed=2)
    assert first_rows[0]["reward/mean"] != other_rows[0]["reward/mean"]
    assert not same(first_state["model"], other_state["model"])


def test_a_run_need_not_be_reproducible(tmp_path: Path) -> None:
    recorded, _ = outcome(tmp_path, **LATE, deterministic="false")
    assert [row["step"] for row in recorded] == [1, 2]
