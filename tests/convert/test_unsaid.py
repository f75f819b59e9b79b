"""What a file leaves to its system is written down: what that system does, and this one would do otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from foreign_files import TRINITY_FILE, merged

from roll.config import load
from roll.config.errors import ConfigWarning
from roll.convert import Conversion, Foreign, convert, to_native_yaml

_ROLL: dict[str, Any] = {
    "rollout_batch_size": 8,
    "sequence_length": 640,
    "actor_train": {
        "training_args": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
        "strategy_args": {"strategy_name": "fsdp_train"},
    },
    "actor_infer": {"generating_args": {"max_new_tokens": 8, "temperature": 1.0}},
    "critic": {"training_args": {"lr_scheduler_type": "cosine"}},
    "train_env_manager": {"num_env_groups": 2, "group_size": 4, "tags": ["Box"], "num_groups_partition": [2]},
    "val_env_manager": {"num_env_groups": 2, "group_size": 1, "tags": ["Box"], "num_groups_partition": [2]},
    "custom_envs": {"Box": {"env_type": "sokoban", "max_tokens_per_step": 8}},
}
_CHATLEARN: dict[str, Any] = {
    "runtime_args": {
        "train_backend": "fsdp",
        "data_path": "train.json",
        "num_episode": 3,
        "sample_per_episode": 64,
        "train_global_batch_size": 64,
        "num_inference_per_prompt": 8,
    },
    "models": {
        "policy_trainer": {"load": "some/model", "optimizer": {"clip_grad": 1}},
        "policy": {"load": "some/model", "max_prompt_tokens_length": 64, "max_response_tokens_length": 64},
    },
}
_MINDSPEED: dict[str, Any] = {
    "megatron_training": {"global_batch_size": 8, "train_iters": 3, "data_path": "dataset/data"},
    "rl_config": {
        "mini_batch_size": 8,
        "n_samples_per_prompt": 4,
        "max_prompt_length": 64,
        "rollout_max_tokens": 64,
        "verifier_function": ["math_verify_reward"],
        "verifier_weight": [1.0],
    },
    "actor_config": {"lr": 1e-6},
    "generate_config": {"tokenizer_name_or_path": "some/model", "sampling_config": {"max_tokens": 64}},
}


def _converted(system: str, tree: dict[str, Any], **changes: Any) -> Conversion:
    return convert(Foreign(merged(tree, changes), Path("job.yaml")), system)


def _job(conversion: Conversion, folder: Path) -> Any:
    assert conversion.ok, conversion.problems
    written = folder / "native.yaml"
    written.write_text(to_native_yaml(conversion))
    assert yaml.safe_load(written.read_text()) == conversion.native
    return load(written)


def _meant(conversion: Conversion) -> str:
    (note,) = [note for note in conversion.notes if note.endswith("means where a file does not say it.")]
    return note


def test_roll_falls_to_a_linear_schedule_and_has_a_critic(tmp_path: Path) -> None:
    conversion = _converted("roll", _ROLL)
    job = _job(conversion, tmp_path)

    assert (job.adv_estimator, job.value_clip) == ("gae", None)
    schedules = [role.training_args.lr_scheduler_type for role in (job.actor_train, job.critic)]
    assert schedules == ["linear", "cosine"], "the critic says its own"
    assert job.actor_train.training_args.learning_rate == 5e-5
    sampling = job.actor_infer.generating_args
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.7, 50)
    assert "adv_estimator: gae" in _meant(conversion)


def test_roll_has_weights_of_terms_that_a_file_only_turns_on(tmp_path: Path) -> None:
    turned_on = dict.fromkeys(("add_token_level_kl", "difficulty_mask", "use_pg_clip_range"), True)
    grpo = {"adv_estimator": "grpo", "reference": {}, "pg_clip": 0.1}
    with pytest.warns(ConfigWarning, match="a critic is configured"):
        job = _job(_converted("roll", _ROLL, **grpo, **turned_on), tmp_path)

    assert (job.init_kl_coef, job.difficulty_low_threshold, job.difficulty_high_threshold) == (0.2, 0.0, 1.0)
    assert (job.pg_clip_low, job.pg_clip_high) == (0.2, 0.2)
    assert job.value_clip == 0.2, "there is no critic, so nothing is said of it"


@pytest.mark.parametrize("said", ["k3", "none"])
def test_trinity_has_k2_in_its_loss_unless_a_file_says_another(said: str, tmp_path: Path) -> None:
    job = _job(_converted("trinity", TRINITY_FILE), tmp_path)
    assert (job.use_kl_loss, job.kl_penalty, job.kl_loss_coef) == (True, "mse", 0.001)
    assert job.reference is not None
    assert (job.actor_train.training_args.weight_decay, job.actor_train.data_args.shuffle) == (0.01, False)

    other = _job(_converted("trinity", TRINITY_FILE, algorithm={"kl_loss_fn": said}), tmp_path)
    assert (other.use_kl_loss, other.kl_penalty) == ((True, "low_var_kl") if said == "k3" else (False, "kl"))


def test_trinity_without_an_algorithm_is_ppo_and_whitens(tmp_path: Path) -> None:
    job = _job(_converted("trinity", {**TRINITY_FILE, "algorithm": {"repeat_times": 1}}), tmp_path)

    assert (job.adv_estimator, job.lambd, job.whiten_advantages) == ("gae", 1.0, True)
    assert job.loss_agg_mode == "token-mean"


def test_trinity_that_only_samples_has_no_reference(tmp_path: Path) -> None:
    assert "use_kl_loss" not in _converted("trinity", TRINITY_FILE, mode="explore").native


def test_chatlearn_has_the_mean_over_tokens_and_its_own_optimiser(tmp_path: Path) -> None:
    conversion = _converted("chatlearn", _CHATLEARN)
    job = _job(conversion, tmp_path)

    assert (job.loss_agg_mode, job.dual_clip) == ("token-mean", 3.0)
    optimiser = job.actor_train.training_args
    assert (optimiser.learning_rate, optimiser.weight_decay, optimiser.adam_beta2) == (2e-6, 0.01, 0.95)
    assert "loss_agg_mode: token-mean" in _meant(conversion)
    sequences = {"models": {"policy_trainer": {"use_group_sequence_policy": True}}}
    assert _job(_converted("chatlearn", _CHATLEARN, **sequences), tmp_path).dual_clip is None


def test_mindspeed_has_a_reference_and_samples_cold(tmp_path: Path) -> None:
    job = _job(_converted("mindspeed", _MINDSPEED), tmp_path)

    assert (job.adv_estimator, job.loss_agg_mode) == ("grpo", "token-mean")
    assert (job.use_kl_loss, job.kl_loss_coef, job.kl_penalty) == (True, 0.01, "low_var_kl")
    optimiser = job.actor_train.training_args
    assert (optimiser.lr_scheduler_type, optimiser.weight_decay) == ("linear", 0.01)
    assert (job.actor_infer.generating_args.temperature, job.actor_infer.generating_args.top_k) == (0.2, 50)


def test_mindspeed_ppo_whitens_and_dapo_has_no_reference(tmp_path: Path) -> None:
    ppo = _job(_converted("mindspeed", _MINDSPEED, rl_config={"adv_estimator": "gae"}), tmp_path)
    assert (ppo.whiten_advantages, ppo.value_clip) == (True, 0.5)

    dapo = _job(_converted("mindspeed", _MINDSPEED, rl_config={"filter_groups_enable": True}), tmp_path)
    assert not dapo.use_kl_loss and dapo.reference is None
