"""The keys of the RLVR pipeline and of evaluation: what is refused before any file is read."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError, ConfigWarning, EvaluationConfig, RLVRConfig, load
from roll.config.worker import WorkerConfig

SOUND: dict[str, Any] = {
    "rollout_batch_size": 16,
    "num_return_sequences_in_group": 4,
    "sequence_length": 256,
    "rewards": {"math_rule": {"tag_included": ["arithmetic"]}},
    "actor_train": {"data_args": {"file_name": "train.jsonl"}},
    "validation": {"data_args": {"file_name": "val.jsonl"}},
}


def refused(changes: dict[str, Any], kind: type = RLVRConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        load({**SOUND, **changes}, kind=kind)
    return str(caught.value)


def test_a_sound_configuration_has_a_plan_of_prompts_and_responses() -> None:
    config = load({**SOUND, "mini_batches": 2, "dynamic_sampling": {"enable": True, "max_batches": 3}}, kind=RLVRConfig)
    assert config.samples_per_step == 64
    batch_plan = config.plan()
    assert batch_plan.update.trajectories_per_optimizer_step == 32
    assert "16 prompts × 4 responses → 64 trajectories" in batch_plan.describe()
    assert "up to 48 prompts" in batch_plan.describe()


@pytest.mark.parametrize(
    ("changes", "place", "hint"),
    [
        ({"rewards": {}}, "rewards", "no domain says how responses are graded"),
        ({"rewards": {"poetry": {}}}, "rewards.poetry.verifiers", "has no verifier"),
        ({"rewards": {"mathrule": {}}}, "rewards.mathrule.verifiers", "did you mean the domain math_rule"),
        (
            {"rewards": {"math_rule": {"tag_included": ["a"]}, "code": {"tag_included": ["a"]}}},
            "rewards.code.tag_included",
            "belongs to math_rule and code",
        ),
        (
            {"rewards": {"math_rule": {"verifier_function": ["acc", "format"], "verifier_weight": [1.0]}}},
            "rewards.math_rule.verifier_weight",
            "1 weights for 2 verifiers",
        ),
        (
            {"rewards": {"math_rule": {"verifier_function": ["acc"], "verifiers": {"math": 1.0}}}},
            "rewards.math_rule.verifier_function",
            "both set",
        ),
        (
            {"rewards": {"math_rule": {"query_filter_config": {"type": "mean_filter", "filter_args": {"low": 0.1}}}}},
            "rewards.math_rule.query_filter_config.filter_args.low",
            "threshold_down, threshold_up",
        ),
        (
            {
                "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
                "custom_reward_function": {"path": "f.py", "name": "compute_score"},
            },
            "custom_reward_function",
            "no domain is graded by compute_score",
        ),
        ({"rewards": {"math_rule": {"verifiers": {"math": float("nan")}}}}, "math_rule.verifiers.math", "finite"),
        ({"actor_train": {}}, "actor_train.data_args.file_name", "no prompts to train on"),
        ({"validation": {}}, "validation.data_args.file_name", "needs prompts"),
        (
            {"actor_train": {"data_args": {"file_name": "a", "domain_interleave_probs": {"math_rule": 0.5}}}},
            "actor_train.data_args.domain_interleave_probs",
            "sum to 0.5",
        ),
        (
            {"actor_train": {"data_args": {"file_name": "a", "domain_interleave_probs": {"maths_rule": 1.0}}}},
            "actor_train.data_args.domain_interleave_probs.maths_rule",
            "did you mean 'math_rule'",
        ),
        ({"num_return_sequences_in_group": 1}, "num_return_sequences_in_group", "nobody to compare with"),
        (
            {"prompt_length": 200, "actor_infer": {"generating_args": {"max_new_tokens": 100}}},
            "actor_infer.generating_args.max_new_tokens",
            "300 tokens do not fit in sequence_length 256",
        ),
        ({"mini_batches": 7}, "mini_batches", "16 × num_return_sequences_in_group 4 = 64 trajectories cannot be cut"),
    ],
)
def test_a_contradiction_names_its_key_and_the_way_out(changes: dict[str, Any], place: str, hint: str) -> None:
    message = refused(changes)
    assert place in message and hint in message


def test_weights_are_written_in_three_ways() -> None:
    ways = (
        {"verifiers": {"acc": 1.0, "format": 0.5}},
        {"verifiers": {"acc": {"weight": 1.0}, "format": {"weight": 0.5, "options": {}}}},
        {"verifier_function": ["acc", "format"], "verifier_weight": [1.0, 0.5]},
    )
    for way in ways:
        reward = load({**SOUND, "rewards": {"math_rule": way}}, kind=RLVRConfig).rewards["math_rule"]
        terms = reward.terms("math_rule")
        assert {name: term.weight for name, term in terms.items()} == {"acc": 1.0, "format": 0.5}


def test_sampling_of_evaluations_is_that_of_training_with_changes() -> None:
    config = load(
        {
            **SOUND,
            "actor_infer": {"generating_args": {"temperature": 0.9, "top_p": 0.8, "max_new_tokens": 20}},
            "val_generating_args": {"temperature": 0.5},
            "validation": {
                "data_args": {"file_name": "val.jsonl"},
                "generating_args": {"num_return_sequences": 8, "top_p": 1.0},
            },
        },
        kind=RLVRConfig,
    )
    sampling = config.val_generating
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.5, 1.0, 20)
    assert sampling.num_return_sequences == 8


def test_the_configuration_of_a_run_evaluates_its_outcome() -> None:
    config = load({**SOUND, "recorded": "responses.parquet"}, kind=EvaluationConfig)
    assert config.recorded is not None and config.validation is not None
    assert "an evaluation needs prompts" in refused({"validation": None}, EvaluationConfig)


def test_a_key_of_another_program_names_that_program() -> None:
    assert "start_rlvr_pipeline.py: start that" in refused({}, AgenticConfig)
    assert "start_agentic_pipeline.py: start that" in refused({"train_env_manager": {"group_size": 4}})
    assert "start_evaluation.py: start that" in refused({"recorded": "a.parquet"})


def test_validation_rows_are_read_as_those_of_training_unless_they_say_otherwise() -> None:
    training = {"file_name": "a.csv", "prompt": "question", "ground_truth": "answer", "system_prompt": "Think."}
    validation: dict[str, Any] = {"file_name": "b.csv", "ground_truth": "solution"}
    changes = {"actor_train": {"data_args": training}, "validation": {"data_args": validation}}
    data = load({**SOUND, **changes}, kind=RLVRConfig).val_data_args
    assert (data.file_name, data.prompt, data.ground_truth) == (["b.csv"], "question", "solution")
    assert data.system_prompt == "Think."
    changes["validation"]["data_args"] = {"file_name": "b.csv", "messages": "chat"}
    data = load({**SOUND, **changes}, kind=RLVRConfig).val_data_args
    assert (data.prompt, data.messages) == (None, "chat")


def test_additional_prompts_without_a_filter_are_said_to_have_no_effect() -> None:
    with pytest.warns(ConfigWarning, match="is_use_additional_prompts"):
        load({**SOUND, "is_use_additional_prompts": True}, kind=RLVRConfig)


@pytest.mark.parametrize("limit", [48, 200])
def test_responses_are_as_long_as_response_length_says(limit: int) -> None:
    config = load({**SOUND, "response_length": limit}, kind=RLVRConfig)
    assert config.actor_infer.generating_args.max_new_tokens == config.val_generating.max_new_tokens == limit
    assert config.plan().max_new_tokens == limit
    both = {"response_length": limit, "actor_infer": {"generating_args": {"temperature": 0.5}}}
    config = load({**SOUND, **both}, kind=RLVRConfig)
    assert (config.actor_infer.generating_args.max_new_tokens, config.actor_infer.generating_args.temperature) == (
        limit,
        0.5,
    )
    in_python = RLVRConfig(response_length=limit, actor_infer=WorkerConfig(infer_batch_size=3))
    assert in_python.actor_infer.generating_args.max_new_tokens == limit and in_python.actor_infer.infer_batch_size == 3


def test_two_limits_of_a_response_are_refused_or_named_where_they_differ() -> None:
    longer = {"response_length": 48, "actor_infer": {"generating_args": {"max_new_tokens": 64}}}
    assert "longer than response_length 48" in refused(longer)
    shorter = {"response_length": 100, "actor_infer": {"generating_args": {"max_new_tokens": 64}}}
    with pytest.warns(ConfigWarning, match="max_new_tokens=64 tokens already"):
        config = load({**SOUND, **shorter}, kind=RLVRConfig)
    assert config.actor_infer.generating_args.max_new_tokens == 64
