"""Runs whose steps go on without their latest groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from tests.e2e import broken_envs, rlvr_support, support
from tests.e2e.ray_support import trained_on

OVER = {"over_rollout.ratio": 0.5, "over_rollout.wait_after_min": 0, "deterministic": False, "eval_steps": 0}


def numbers(folder: Path, step: int) -> list[int]:
    """Return the numbers of the groups of a step."""
    return sorted({int(member.group_id.rpartition("-")[2]) for member in trained_on(folder, step)})


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [row for row in support.rows(folder) if "rollout/groups_late" in row]


def test_prompts_that_are_answered_late_are_given_up_and_a_resumed_run_goes_on_behind_them(tmp_path: Path) -> None:
    changes = {**OVER, "dynamic_sampling.enable": False, "save_steps": 1}
    run_rlvr(rlvr_support.small_config(tmp_path, max_steps=1, **changes))
    run_rlvr(rlvr_support.small_config(tmp_path, max_steps=3, resume_from_checkpoint=True, **changes))
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["rollout/groups_late"] for row in rows] == [4.0] * 3
    assert [row["rollout/prompts_consumed"] for row in rows] == [8.0] * 3
    assert [row["data/epoch"] for row in rows] == [pytest.approx(8 * step / 14) for step in (1, 2, 3)]
    for step in range(3):
        found = numbers(tmp_path, step + 1)
        assert len(found) == 4 and set(found) <= set(range(8 * step, 8 * step + 8))


def test_games_that_hang_are_given_up_and_their_environments_closed(tmp_path: Path) -> None:
    before = broken_envs.Dawdles.in_use
    tags = {"train_env_manager.tags": "[dawdles]", "env_modules": "[tests.e2e.broken_envs]", "save_steps": 0}
    config = support.small_config(tmp_path, max_steps=3, **tags, **OVER)
    run_agentic(config)
    assert [row["rollout/groups_late"] for row in metrics(tmp_path)] == [4.0] * 3
    assert broken_envs.Dawdles.in_use == before
    trained = [number for step in (1, 2, 3) for number in numbers(tmp_path, step)]
    assert trained == sorted(set(trained)) and len(trained) == 12
    assert max(trained) < 24 and trained != list(range(12)), "some of the levels before them hang"
