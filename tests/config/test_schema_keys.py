"""Keys of the systems' own schemas: those that their guides do not print have a state too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.convert import Conversion, Foreign, convert

pytestmark = pytest.mark.heavy  # what a file became is checked as a run is

_VERL: dict[str, Any] = {
    "data": {"train_files": "rows.parquet", "train_batch_size": 64},
    "actor_rollout_ref": {"model": {"path": "some/model"}, "rollout": {"n": 8, "name": "vllm"}},
    "trainer": {"n_gpus_per_node": 8, "nnodes": 1},
    "algorithm": {"adv_estimator": "grpo"},
}
_ROLL: dict[str, Any] = {
    "pipeline": "rlvr",
    "pretrain": "some/model",
    "rollout_batch_size": 64,
    "num_return_sequences_in_group": 8,
    "adv_estimator": "grpo",
    "actor_train": {"data_args": {"file_name": ["rows.jsonl"]}},
    "rewards": {"math_rule": {}},
    "validation": {"data_args": {"file_name": ["held_out.jsonl"]}},
}
_CHATLEARN: dict[str, Any] = {
    "runtime_args": {"train_backend": "fsdp", "data_path": "rows.jsonl", "sample_per_episode": 64},
    "models": {"policy": {"num_inference_per_prompt": 8}, "policy_trainer": {"load": "some/model", "num_gpu": 8}},
}
_MINDSPEED: dict[str, Any] = {
    "megatron_training": {"tokenizer_name_or_path": "some/model", "global_batch_size": 64, "data_path": "rows.jsonl"},
    "rl_config": {"n_samples_per_prompt": 8, "actor_resource": {"num_npus": 8}, "verifier_function": ["acc"]},
}
_FILES = {"verl": _VERL, "roll": _ROLL, "chatlearn": _CHATLEARN, "mindspeed": _MINDSPEED}


def _with(tree: Any, path: list[str], value: Any) -> Any:
    head, *rest = path
    below = tree.get(head, {})
    return {**tree, head: _with(below, rest, value) if rest else value}


def _converted(system: str, key: str, value: Any) -> Conversion:
    return convert(Foreign(_with(_FILES[system], key.split("."), value), Path("job.yaml")), system)


@pytest.mark.parametrize(
    ("system", "key", "value", "state"),
    [
        ("verl", "actor_rollout_ref.actor.checkpoint.save_contents", ["model", "optimizer", "extra"], "translated"),
        ("verl", "actor_rollout_ref.actor.checkpoint.load_contents", ["model"], "impossible"),
        ("verl", "actor_rollout_ref.actor.freeze_vision_tower", False, "translated"),
        ("verl", "actor_rollout_ref.model.trust_remote_code", False, "translated"),
        ("verl", "actor_rollout_ref.model.trust_remote_code", True, "no_effect"),
        ("verl", "reward_manager.name", "dapo", "no_effect"),
        ("verl", "actor_rollout_ref.model.override_config.rope_scaling.type", "dynamic", "impossible"),
        ("verl", "actor_rollout_ref.model.override_config.num_hidden_layers", 2, "impossible"),
        ("verl", "actor_rollout_ref.model.override_config.attention_dropout", 0.0, "no_effect"),
        ("verl", "actor_rollout_ref.model.override_config.rope_theta", 5e5, "translated"),
        ("roll", "model_update_buffer_size_mb", 512, "translated"),
        ("roll", "actor_train.model_args.rope_theta", 5e5, "translated"),
        ("roll", "actor_train.model_args.model_config_kwargs.rope_theta", 5e5, "translated"),
        ("roll", "actor_train.model_args.model_config_kwargs.num_hidden_layers", 2, "impossible"),
        ("roll", "actor_train.model_args.dtype", None, "translated"),
        ("roll", "actor_train.training_args.save_strategy", "no", "translated"),
        ("roll", "actor_train.training_args.save_strategy", "steps", "no_effect"),
        ("roll", "actor_train.training_args.save_strategy", "best", "impossible"),
        ("roll", "val_n_sample", 4, "translated"),
        ("roll", "actor_train.training_args.save_hf_model", True, "translated"),
        ("roll", "actor_infer.generating_args.min_p", 0.05, "translated"),
        ("roll", "router_args.router_name", "PromptAffinityRouter", "no_effect"),
        ("roll", "actor_train.mtp_training_mode", "joint", "impossible"),
        ("chatlearn", "models.policy_trainer.trust_remote_code", False, "translated"),
        ("chatlearn", "runtime_args.max_replay_episode", 2, "translated"),
        ("chatlearn", "runtime_args.log_args_dict.wandb_project", "mine", "translated"),
        ("chatlearn", "models.policy_trainer.num_layers", 32, "no_effect"),
        ("mindspeed", "rl_config.use_swanlab", True, "translated"),
        ("mindspeed", "megatron_training.attention_softmax_in_fp32", True, "translated"),
        ("mindspeed", "megatron_training.rope_scaling_factor", 4.0, "no_effect"),
        ("mindspeed", "rl_config.multi_turn_enable", True, "impossible"),
        ("mindspeed", "msprobe_config.dump_path", "dump", "no_effect"),
    ],
)
def test_a_key_of_a_schema_has_a_state_and_the_file_can_be_used(system: str, key: str, value: Any, state: str) -> None:
    conversion = _converted(system, key, value)

    assert conversion.ok, conversion.problems
    [found] = [each for each in conversion.keys if each.key == key]
    assert found.state == state
    assert "that is known here" not in found.why


@pytest.mark.parametrize(
    ("system", "key", "value"),
    [
        ("verl", "actor_rollout_ref.actor.checkpoint.save_contents", ["modle"]),
        ("mindspeed", "rl_config.use_swanlap", True),
        ("chatlearn", "models.policy_trainer.trust_remote_cod", False),
    ],
)
def test_a_mistake_beside_them_stays_one(system: str, key: str, value: Any) -> None:
    assert key in [problem.path for problem in _converted(system, key, value).problems]


def test_options_of_a_tracker_wait_until_it_is_asked_for() -> None:
    conversion = _converted("mindspeed", "rl_config.wandb_project", "mine")
    assert conversion.native["tracker_kwargs"] == {"wandb": {"project": "mine"}}
    assert "track_with" not in conversion.native


def test_a_number_format_that_is_null_is_the_models_own() -> None:
    """ROLL computes in bf16 where a file says nothing, and as the model's config.json says where it says null."""
    conversion = _converted("roll", "actor_train.model_args.dtype", None)
    assert conversion.native["actor_train"]["model_args"]["dtype"] is None
    assert _converted("roll", "val_n_sample", 4).native["actor_train"]["model_args"]["dtype"] == "bf16"
