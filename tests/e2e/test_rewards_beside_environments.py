"""Runs whose episodes are graded by verifiers and compared within their group, beside what the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config import ConfigError
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.rlvr import run_rlvr
from tests.e2e import rlvr_support
from tests.e2e.ray_support import trained_on
from tests.e2e.support import rows, small_config

GRADED = {
    "max_steps": 1,
    "save_steps": 0,
    "eval_steps": 1,
    "rewards": "{up: {tag_included: [SimpleSokoban], "
    "verifiers: {format: {weight: 0.5, options: {pattern: '.*Up.*'}}}}}",
    "group_reward": "{distinct: 0.25}",
}


@pytest.mark.exhaustive
def test_an_episode_has_the_rewards_of_environment_verifier_and_group(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    run_agentic(small_config(plain, **{**GRADED, "rewards": "{}", "group_reward": "{}"}))
    run_agentic(small_config(tmp_path / "graded", **GRADED))
    before, after = trained_on(plain, 1), trained_on(tmp_path / "graded", 1)
    assert [t.turns[0].completion_ids for t in before] == [t.turns[0].completion_ids for t in after]
    for without, graded in zip(before, after, strict=True):
        last = graded.turns[-1]
        added = last.reward_parts["format"] + last.reward_parts["distinct"]
        assert graded.score == pytest.approx((without.score or 0.0) + added)
        assert graded.score == pytest.approx(sum(turn.reward for turn in graded.turns))
        assert last.reward_parts["format"] == 0.5 * graded.metrics["format"]
    assert len({t.turns[-1].reward_parts["distinct"] for t in after}) > 1
    recorded = rows(tmp_path / "graded")
    assert "val/env/format" in recorded[0] and "val/env/distinct" not in recorded[0]


def test_responses_to_a_prompt_are_compared_too(tmp_path: Path) -> None:
    options = {"max_steps": 1, "save_steps": 0, "eval_steps": 0, "dynamic_sampling__enable": False}
    run_rlvr(rlvr_support.small_config(tmp_path, **options, group_reward={"distinct": 0.25}))
    for trajectory in trained_on(tmp_path, 1):
        assert trajectory.score == pytest.approx(sum(trajectory.turns[-1].reward_parts.values()))
        assert "distinct" in trajectory.turns[-1].reward_parts


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"rewards": "{up: {tag_included: [FrozenLake], verifiers: {format: 1.0}}}"}, "rewards.up.tag_included"),
        ({"rewards": "{up: {tag_included: [SimpleSokoban], verifiers: {fromat: 1.0}}}"}, "verifiers.fromat"),
        ({"rewards": "{up: {tag_included: [SimpleSokoban]}}"}, "rewards.up.verifiers"),
        ({"group_reward": "{distnct: 1.0}"}, "group_reward.distnct"),
        ({"group_reward": "{distinct: {options: {bonus: 1}}}"}, "group_reward.distinct.options"),
    ],
)
def test_what_cannot_grade_is_found_before_a_model_loads(changes: dict[str, str], where: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=where.replace(".", r"\.")):
        check_agentic(small_config(tmp_path, **changes))
