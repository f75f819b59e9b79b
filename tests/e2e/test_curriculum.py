"""A run whose levels get harder: it plays what it recorded, and goes on where it stopped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.envs import make
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.agentic import check_agentic
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e.support import rows, same, small_config, train_state

# Three tries of ten count as mastered, so that four steps of the toy policy see several tags.
CURRICULUM = {
    **{"preset": "sokoban_curriculum", "eval_steps": 0, "save_steps": 1, "val_env_manager.env_groups": 4},
    **{"val_batch_size": 4, "train_env_manager.curriculum.mastered_at": 0.3},
}


def played(output_dir: Path, steps: int, **changes: Any) -> list[Counter[str]]:
    """Run so many steps; return how many episodes of each tag each step had."""
    run_agentic(small_config(output_dir, **{**CURRICULUM, "max_steps": steps, **changes}))
    files = (trajectory_path(output_dir, step, "train") for step in range(1, steps + 1))
    return [Counter(each.tag for each in read_trajectories(file)) for file in files]


# Levels of one tag, of one push, of two or three, and of more.
ONE_TAG = {
    "preset": "sokoban",
    "train_env_manager.curriculum.difficulty.SimpleSokoban": "[1, 3]",
    "train_env_manager.curriculum.mastered_at": 0.2,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("changes", [{"train_env_manager.curriculum.choose": "learning_progress"}, ONE_TAG])
def test_a_curriculum_that_goes_on_plays_the_same_levels(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = played(tmp_path / "whole", 4, **changes)
    played(tmp_path / "parts", 2, **changes)
    assert played(tmp_path / "parts", 4, resume_from_checkpoint="true", **changes) == whole
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert same(train_state(tmp_path / "parts", 4), train_state(tmp_path / "whole", 4))
    assert len(sum(whole, Counter())) > 1 or changes is ONE_TAG


def test_levels_of_one_tag_get_harder_when_easier_ones_are_mastered(tmp_path: Path) -> None:
    played(tmp_path, 3, **ONE_TAG)
    env = make("SimpleSokoban")
    pushes = [
        {env.difficulty(each.seed) for each in read_trajectories(trajectory_path(tmp_path, step, "train"))}
        for step in (1, 2, 3)
    ]
    assert pushes[0] == {1.0}, pushes
    stages = [row["rollout/curriculum/stage"] for row in rows(tmp_path)]
    assert stages[0] == 1 and max(pushes[1]) in (2.0, 3.0)
    assert rows(tmp_path)[1].keys() >= {"rollout/curriculum/SimpleSokoban/0", "rollout/curriculum/SimpleSokoban/1"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"difficulty.SimpleSokoban": "[1, 1000]"}, "none of 1000 levels of SimpleSokoban has a difficulty above 1000"),
        ({"difficulty.FrozenLake": "[3]"}, "does not tell the difficulty of its levels"),
    ],
)
def test_difficulties_that_are_not_there_are_told_before_a_model_loads(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    given = {f"train_env_manager.curriculum.{key}": value for key, value in changes.items()}
    tags = {"train_env_manager.tags": "[SimpleSokoban, FrozenLake]"}
    with pytest.raises(ConfigError, match=told):
        check_agentic(small_config(tmp_path, **given, **tags))


def test_levels_get_harder_when_easier_ones_are_mastered(tmp_path: Path) -> None:
    first, second = played(tmp_path, 2)
    recorded = rows(tmp_path)
    assert set(first) == {"SokobanOnePush"} and recorded[0]["rollout/curriculum/SokobanOnePush"] > 0.3
    assert recorded[0]["rollout/curriculum/stage"] == 1 and "SokobanFewPushes" in second
