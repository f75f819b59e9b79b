"""The keys of an agentic run that answers prompts too: its plan, and what is refused before any file is read."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError, load
from roll.pipelines.checks.keys_without_effect import keys_without_effect

PROMPTS: dict[str, Any] = {
    "prompts_per_step": 6,
    "num_return_sequences_in_group": 4,
    "rewards": {"math_rule": {"tag_included": ["arithmetic"]}},
    "actor_train": {"data_args": {"file_name": "train.jsonl"}},
    "validation": {"data_args": {"file_name": "val.jsonl"}},
}
SOUND: dict[str, Any] = {
    "rollout_batch_size": 32,
    "train_env_manager": {"env_groups": 8, "group_size": 4},
    **PROMPTS,
}


def loaded(changes: dict[str, Any]) -> AgenticConfig:
    return load({**SOUND, **changes}, kind=AgenticConfig)


def refused(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(changes)
    return str(caught.value)


def test_the_plan_counts_episodes_and_responses() -> None:
    config = loaded({"mini_batches": 7, "dynamic_sampling": {"enable": True, "max_batches": 3}})
    assert config.samples_per_step == 8 * 4 + 6 * 4
    plan = config.plan()
    assert plan.update.trajectories_per_optimizer_step == 8
    assert plan.train.trajectories == 56
    assert plan.train.short() == "8 groups of 4 + 6 prompts × 4 responses"
    assert "up to 24 groups" in plan.train.describe() and "up to 18 prompts" in plan.train.describe()
    assert plan.val is not None and "every validation prompt" in plan.val.describe()


def test_without_prompts_the_plan_is_that_of_environments() -> None:
    config = load({key: value for key, value in SOUND.items() if key not in PROMPTS}, kind=AgenticConfig)
    assert config.samples_per_step == 32
    assert config.plan().train.short() == "8 groups of 4"


@pytest.mark.parametrize(
    ("changes", "place", "hint"),
    [
        ({"rewards": {}}, "rewards\n", "rewards: {math_rule: {tag_included: [arithmetic]}}"),
        (
            {"rewards": {"style": {"tag_included": ["SimpleSokoban"], "verifiers": {"math": 1.0}}}},
            "those of rewards (style) grade environments",
            "prompts_per_step: 0",
        ),
        ({"actor_train": {}}, "actor_train.data_args.file_name", "examples/data/arithmetic_train.jsonl"),
        ({"validation": {"data_args": {}}}, "validation.data_args.file_name", "without evaluations"),
        (
            {"mini_batches": 3},
            "rollout_batch_size 32 + prompts_per_step 6 × num_return_sequences_in_group 4 = 56 trajectories",
            "mini_batches: 2 or 4",
        ),
        (
            {"num_return_sequences_in_group": 1},
            "num_return_sequences_in_group = 1",
            "set num_return_sequences_in_group to 2 or more",
        ),
        (
            {
                "actor_train": {
                    "data_args": {"file_name": "train.jsonl"},
                    "training_args": {"per_device_train_batch_size": 10, "gradient_accumulation_steps": 1},
                }
            },
            "is not a multiple of the 10 trajectories",
            "rollout_batch_size: 26 or 36",
        ),
        (
            {"custom_envs": {"prompts": {"env_type": "sokoban"}}, "train_env_manager": {"tags": ["prompts"]}},
            "train_env_manager.tags",
            "give the tag another name",
        ),
        ({"prompts_per_step": 0}, "rewards.math_rule.tag_included", "prompts_per_step: 32"),
        ({"prompts_per_step": 0, "rewards": {}}, "validation\n", "prompts_per_step: 32"),
        (
            {"actor_train": {"data_args": {"file_name": "train.jsonl", "domain_interleave_probs": {"math_rule": 0.5}}}},
            "the shares sum to 0.5",
            "let them sum to 1",
        ),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused_with_a_fix(changes: dict[str, Any], place: str, hint: str) -> None:
    message = refused(changes)
    assert place in message and hint in message


def test_a_domain_of_environments_beside_one_of_prompts_grades_environments_only() -> None:
    style = {"tag_included": ["SimpleSokoban"], "verifiers": {"math": 1.0}}
    config = loaded({"rewards": {**SOUND["rewards"], "style": style}})
    assert config.prompt_tags == {"math_rule": ["arithmetic"]}


def test_prompts_are_evaluated_as_validation_says_and_environments_as_any_evaluation() -> None:
    val = {"data_args": {"file_name": "val.jsonl"}, "generating_args": {"temperature": 0.0, "num_return_sequences": 2}}
    config = loaded({"validation": val, "val_generating_args": {"temperature": 0.5, "top_p": 0.9}})
    assert (config.val_generating.temperature, config.val_generating.top_p) == (0.5, 0.9)
    assert (config.validation_generating.temperature, config.validation_generating.top_p) == (0.0, 0.9)


def test_keys_of_prompts_have_an_effect_only_where_a_step_has_prompts() -> None:
    assert list(keys_without_effect(loaded({}))) == []
    idle = list(keys_without_effect(loaded({"prompts_per_step": 0, "rewards": {}, "validation": None})))
    assert [sentence.split(" ")[0] for sentence in idle] == [
        "num_return_sequences_in_group=4",
        "actor_train.data_args.file_name",
    ]
