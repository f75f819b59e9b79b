"""What a configuration of verl means as a whole: its defaults, its rewards by source, and what it cannot have here."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import ConfigError, load
from roll.config.dialects import translate
from roll.config.rlvr import RLVRConfig
from roll.config.sft import SFTConfig

pytestmark = pytest.mark.filterwarnings("ignore::roll.config.ConfigWarning")

DATA = {"train_files": ["gsm8k.parquet", "math.parquet"]}


def grpo(**sections: Any) -> dict[str, Any]:
    """Return a small configuration of verl with further sections."""
    model = {"rollout": {"n": 4, **sections.pop("rollout", {})}, "actor": sections.pop("actor", {})}
    return {"algorithm": {"adv_estimator": "grpo"}, "data": DATA, "actor_rollout_ref": model, **sections}


def test_rows_are_graded_by_their_source_where_no_function_is_named() -> None:
    loaded = load(grpo(), kind=RLVRConfig)
    tags = {tag: domain for domain, reward in loaded.rewards.items() for tag in reward.tags(domain)}
    assert tags["openai/gsm8k"] == "gsm8k"
    assert tags["math_dapo"] == "math_rule"
    assert tags["codecontests"] == "code_sandbox"
    assert loaded.rewards["gsm8k"].terms("gsm8k")["math"].options == {"answer_in": ["hash"]}
    assert loaded.actor_train.data_args.tag == "data_source"


def test_rewards_of_ones_own_stay_alone() -> None:
    loaded = load(grpo(rewards={"math_rule": {}}), kind=RLVRConfig)
    assert list(loaded.rewards) == ["math_rule"]


def test_a_function_of_ones_own_grades_every_row() -> None:
    loaded = load(grpo(custom_reward_function={"path": "reward.py"}), kind=RLVRConfig)
    assert list(loaded.rewards) == ["all"]


def test_a_reward_model_grades_every_row() -> None:
    model = {"enable": True, "model": {"path": "V", "fsdp_config": {"param_offload": True}}}
    loaded = load(grpo(reward_model=model, trainer={"n_gpus_per_node": 2}), kind=RLVRConfig)
    assert loaded.rewards["all"].terms("all").keys() == {"reward_model"}
    assert loaded.reward_pretrain == "V"
    assert loaded.reward is not None and loaded.reward.device_mapping == [0, 1]
    assert loaded.reward.strategy_args.strategy_config == {"offload_params": True}


@pytest.mark.parametrize(("section", "budget"), [({"use_dynamic_bsz": True}, 16384), ({}, None)])
def test_batches_by_length_have_the_budget_of_the_guide(section: dict[str, Any], budget: int | None) -> None:
    loaded = load(grpo(actor=section), kind=RLVRConfig)
    assert loaded.actor_train.training_args.max_tokens_per_microbatch == budget


def test_the_divergence_in_the_reward_has_the_weight_of_the_guide() -> None:
    algorithm = {"adv_estimator": "grpo", "use_kl_in_reward": True}
    assert load(grpo(algorithm=algorithm), kind=RLVRConfig).init_kl_coef == 0.001


def test_options_of_megatron_choose_it_and_spread_the_reference_alike() -> None:
    actor = {"use_kl_loss": True, "megatron": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}}
    loaded = load(grpo(actor=actor, trainer={"n_gpus_per_node": 8}), kind=RLVRConfig)
    assert loaded.actor_train.strategy_args.strategy_name == "megatron_train"
    assert loaded.reference is not None
    assert loaded.reference.strategy_args.strategy_name == "megatron_infer"
    assert loaded.reference.strategy_args.strategy_config == loaded.actor_train.strategy_args.strategy_config


def test_one_switch_moves_weights_and_optimiser_and_says_so() -> None:
    fsdp = {"param_offload": False, "optimizer_offload": True}
    native = translate(grpo(actor={"fsdp_config": fsdp}), RLVRConfig)
    assert native.data["actor_train"]["strategy_args"]["strategy_config"] == {"offload_params": True}
    assert any("together" in note for _, note in native.notes)


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"rollout": {"multi_turn": {"enable": True}}}, "actor_rollout_ref.rollout.multi_turn.enable"),
        ({"rollout": {"name": "trtllm"}}, "actor_rollout_ref.rollout.name"),
        ({"rollout": {"data_parallel_size": 2}}, "actor_rollout_ref.rollout.data_parallel_size"),
        ({"actor": {"router_replay": {"mode": "R3"}}}, "actor_rollout_ref.actor.router_replay.mode"),
        ({"actor": {"policy_loss": {"loss_mode": "dppo_tv"}}}, "actor_rollout_ref.actor.policy_loss.loss_mode"),
        ({"algorithm": {"adv_estimator": "optimal_token_baseline"}}, "algorithm.adv_estimator"),
        ({"reward_model": {"reward_manager": "mine"}}, "reward_model.reward_manager"),
    ],
)
def test_what_is_not_here_is_refused_and_recorded(sections: dict[str, Any], key: str) -> None:
    written = grpo(**sections)
    assert [each.key for each in translate(written, RLVRConfig).keys if each.state == "impossible"] == [key]
    with pytest.raises(ConfigError) as caught:
        load(written, kind=RLVRConfig)
    assert [problem.path for problem in caught.value.problems] == [key]


def test_a_trainer_of_demonstrations_becomes_supervised_fine_tuning() -> None:
    written = {
        "data": {
            "train_files": "train.parquet",
            "val_files": "test.parquet",
            "prompt_key": "extra_info",
            "prompt_dict_keys": ["question"],
            "response_key": "answer",
            "train_batch_size": 64,
            "micro_batch_size_per_gpu": 2,
            "max_length": 4096,
            "truncation": "right",
        },
        "model": {"partial_pretrain": "M", "lora_rank": 8, "fsdp_config": {"model_dtype": "bf16"}},
        "optim": {"lr": 1e-4, "betas": [0.9, 0.95], "clip_grad": 0.5, "lr_warmup_steps_ratio": 0.1},
        "engine": {"ulysses_sequence_parallel_size": 2},
        "trainer": {"total_epochs": 3, "n_gpus_per_node": 8, "project_name": "p", "experiment_name": "e"},
        "use_remove_padding": True,
    }
    written["trainer"] |= {"save_freq": "after_each_epoch", "test_freq": "after_each_epoch"}
    loaded = load(written, kind=SFTConfig)
    training = loaded.actor_train.training_args
    assert (loaded.pretrain, loaded.prompt_key, loaded.response_key) == ("M", "extra_info.question", "answer")
    assert loaded.rows_per_step == 64 and training.per_device_train_batch_size == 2
    assert (loaded.epochs, loaded.sequence_length, loaded.max_grad_norm) == (3, 4096, 0.5)
    assert (loaded.save_epochs, loaded.eval_epochs) == (1, 1)
    assert (training.learning_rate, training.adam_beta2, training.warmup_ratio) == (1e-4, 0.95, 0.1)
    assert loaded.actor_train.strategy_args.strategy_config == {"ulysses_size": 2}
    assert loaded.actor_train.device_mapping == list(range(8)) and loaded.cluster == "ray"
    assert loaded.actor_train.model_args.lora_rank == 8 and loaded.actor_train.packs


def test_keys_of_demonstrations_have_no_effect_where_responses_are_sampled() -> None:
    native = translate(grpo(data={**DATA, "max_length": 4096}), RLVRConfig)
    assert "sequence_length" not in native.data
    assert [each.key for each in native.keys if each.state == "no_effect"] == ["data.max_length"]


@pytest.mark.parametrize("nothing", ["", []])
def test_without_files_to_measure_on_nothing_is_said_of_evaluations(nothing: Any) -> None:
    written = grpo(rollout={"val_kwargs": {"n": 4, "do_sample": False, "temperature": 0.5}})
    written["data"] = {**DATA, "val_files": nothing}
    assert load(written, kind=RLVRConfig).validation is None


def test_an_engine_is_on_one_machine() -> None:
    written = grpo(rollout={"name": "vllm", "tensor_model_parallel_size": 16}, trainer={"n_gpus_per_node": 8})
    keys = {each.key: each.state for each in translate(written, RLVRConfig).keys}
    assert keys["actor_rollout_ref.rollout.tensor_model_parallel_size"] == "impossible"
