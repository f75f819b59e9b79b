"""Every key of every guide has the effect that its row says, in a configuration that was loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError, ConfigWarning, RLConfig, load
from roll.config.dialects import GUIDES, Row, translate
from roll.config.rlvr import RLVRConfig
from tests.config import chatlearn_cases, schema_cases, trinity_cases, verl_cases
from tests.rings import exhaustive_but

BASE: dict[str, Any] = {
    "actor_train.data_args.file_name": "x.jsonl",
    "adv_estimator": "reinforce",
    "rewards.math_rule.verifiers.math": 1.0,
}
"""What an RLVR configuration needs to load; a case leaves out what it sets itself."""

ENGINE = "actor_infer.strategy_args.strategy_config"
TRAIN = "actor_train.training_args"
TRAINER = "actor_train.strategy_args.strategy_config"
DATA = "actor_train.data_args"
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
T, P = "models.policy_trainer", "models.policy"
KL = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01}
ADAPTIVE = {**KL, "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.target_kl": 0.2}
PICTURES = Path(__file__).with_name("rows_with_pictures.parquet")
"""A file with the columns ``prompt`` and ``pictures``."""

Case = tuple[Any, Mapping[str, Any], Mapping[str, Any]]
"""The value of the key, other keys beside it, and the native values that follow."""

VERL: dict[str, Case] = {
    "algorithm.gamma": (0.9, {}, {"gamma": 0.9}),
    "algorithm.lam": (0.8, {}, {"lambd": 0.8}),
    "algorithm.adv_estimator": ("gae", {}, {"adv_estimator": "gae"}),
    "algorithm.use_kl_in_reward": (True, {"algorithm.kl_ctrl.kl_coef": 0.1}, {"add_token_level_kl": True}),
    "algorithm.kl_penalty": ("k3", KL, {"kl_penalty": "low_var_kl"}),
    "algorithm.kl_ctrl.type": (
        "adaptive",
        {**KL, "algorithm.kl_ctrl.target_kl": 0.2},
        {"target_kl": 0.2, "init_kl_coef": 0.01},
    ),
    "algorithm.kl_ctrl.kl_coef": (0.05, {"algorithm.use_kl_in_reward": True}, {"init_kl_coef": 0.05}),
    "algorithm.kl_ctrl.horizon": (700, ADAPTIVE, {"kl_horizon": 700}),
    "algorithm.kl_ctrl.target_kl": (0.3, {**KL, "algorithm.kl_ctrl.type": "adaptive"}, {"target_kl": 0.3}),
    "algorithm.norm_adv_by_std_in_grpo": (False, {}, {"norm_adv_by_std_in_grpo": False}),
    "algorithm.filter_groups.enable": (
        True,
        {"num_return_sequences_in_group": 4},
        {"dynamic_sampling.enable": True},
    ),
    "algorithm.filter_groups.max_num_gen_batches": (5, {}, {"dynamic_sampling.max_batches": 5}),
    f"{A}.grad_clip": (0.5, {}, {"max_grad_norm": 0.5}),
    f"{A}.clip_ratio": (0.1, {}, {"pg_clip": 0.1, "clip_low": 0.1, "clip_high": 0.1}),
    f"{A}.clip_ratio_low": (0.1, {}, {"pg_clip_low": 0.1}),
    f"{A}.clip_ratio_high": (0.28, {}, {"pg_clip_high": 0.28}),
    f"{A}.clip_ratio_c": (5.0, {}, {"dual_clip_loss": 5.0, "dual_clip": 5.0}),
    f"{A}.entropy_coeff": (0.01, {}, {"entropy_loss_coef": 0.01}),
    f"{A}.use_kl_loss": (True, {f"{A}.kl_loss_coef": 0.1}, {"use_kl_loss": True, "needs_reference": True}),
    f"{A}.kl_loss_coef": (0.02, {f"{A}.use_kl_loss": True}, {"kl_loss_coef": 0.02}),
    f"{A}.kl_loss_type": (
        "k3+",
        {f"{A}.use_kl_loss": True, f"{A}.kl_loss_coef": 0.1},
        {"kl_penalty": "low_var_kl+"},
    ),
    f"{A}.ppo_epochs": (3, {}, {"ppo_epochs": 3}),
    f"{A}.loss_agg_mode": ("token-mean", {}, {"loss_agg_mode": "token-mean"}),
    f"{A}.policy_loss.loss_mode": ("gpg", {}, {"policy_loss": "vanilla"}),
    **{
        f"{A}.policy_loss.{option}": (0.5, {f"{A}.policy_loss.loss_mode": mode}, {"policy_loss_options": {option: 0.5}})
        for mode, options in {
            "clip_cov": ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
            "kl_cov": ("kl_cov_ratio", "ppo_kl_coef"),
        }.items()
        for option in options
    },
    f"{A}.tis_imp_ratio_cap": (3.0, {}, {"sampler_correction.mode": "tis", "sampler_correction.cap": 3.0}),
    f"{A}.ppo_mini_batch_size": (16, {"data.train_batch_size": 64}, {"mini_batches": 4, "rollout_batch_size": 64}),
    f"{A}.ppo_micro_batch_size_per_gpu": (4, {}, {f"{TRAIN}.per_device_train_batch_size": 4}),
    f"{A}.use_dynamic_bsz": (
        True,
        {f"{A}.ppo_max_token_len_per_gpu": 9000},
        {f"{TRAIN}.max_tokens_per_microbatch": 9000},
    ),
    f"{A}.ppo_max_token_len_per_gpu": (
        8000,
        {f"{A}.use_dynamic_bsz": True},
        {f"{TRAIN}.max_tokens_per_microbatch": 8000},
    ),
    f"{A}.strategy": ("megatron", {}, {"actor_train.strategy_args.strategy_name": "megatron_train"}),
    f"{A}.optim.lr": (3e-6, {}, {f"{TRAIN}.learning_rate": 3e-6}),
    f"{A}.optim.weight_decay": (0.1, {}, {f"{TRAIN}.weight_decay": 0.1}),
    f"{A}.optim.lr_warmup_steps_ratio": (0.1, {}, {f"{TRAIN}.warmup_ratio": 0.1}),
    f"{A}.optim.min_lr_ratio": (0.1, {}, {f"{TRAIN}.min_lr_ratio": 0.1}),
    f"{A}.optim.lr_warmup_steps": (7, {}, {f"{TRAIN}.warmup_steps": 7}),
    f"{A}.optim.warmup_style": ("cosine", {}, {f"{TRAIN}.lr_scheduler_type": "cosine"}),
    "critic.cliprange_value": (0.5, {}, {"value_clip": 0.5}),
    "critic.grad_clip": (0.5, {f"{A}.grad_clip": 0.5}, {"max_grad_norm": 0.5}),
    "critic.ppo_epochs": (2, {f"{A}.ppo_epochs": 2}, {"ppo_epochs": 2}),
    "critic.ppo_mini_batch_size": (32, {"data.train_batch_size": 64}, {"mini_batches": 2}),
    "critic.ppo_micro_batch_size_per_gpu": (4, {}, {"critic.training_args.per_device_train_batch_size": 4}),
    "critic.forward_micro_batch_size_per_gpu": (4, {}, {"critic.infer_batch_size": 4}),
    "critic.use_dynamic_bsz": (
        True,
        {"critic.ppo_max_token_len_per_gpu": 9000},
        {"critic.training_args.max_tokens_per_microbatch": 9000},
    ),
    "critic.ppo_max_token_len_per_gpu": (
        8000,
        {"critic.use_dynamic_bsz": True},
        {"critic.training_args.max_tokens_per_microbatch": 8000},
    ),
    "critic.strategy": ("fsdp2", {}, {"critic.strategy_args.strategy_name": "fsdp_train"}),
    "critic.optim.lr": (3e-5, {}, {"critic.training_args.learning_rate": 3e-5}),
    "critic.optim.weight_decay": (0.1, {}, {"critic.training_args.weight_decay": 0.1}),
    "critic.optim.lr_warmup_steps_ratio": (0.1, {}, {"critic.training_args.warmup_ratio": 0.1}),
    "critic.optim.min_lr_ratio": (0.1, {}, {"critic.training_args.min_lr_ratio": 0.1}),
    "critic.optim.lr_warmup_steps": (7, {}, {"critic.training_args.warmup_steps": 7}),
    "critic.optim.warmup_style": ("cosine", {}, {"critic.training_args.lr_scheduler_type": "cosine"}),
    "critic.model.path": ("V", {}, {"critic.model_args.model_name_or_path": "V"}),
    "critic.model.enable_gradient_checkpointing": (
        False,
        {},
        {"critic.model_args.disable_gradient_checkpointing": True},
    ),
    "actor_rollout_ref.model.path": ("M", {}, {"pretrain": "M"}),
    "actor_rollout_ref.model.enable_gradient_checkpointing": (
        False,
        {},
        {"actor_train.model_args.disable_gradient_checkpointing": True},
    ),
    "actor_rollout_ref.model.use_remove_padding": (True, {}, {"actor_train.use_remove_padding": True}),
    "actor_rollout_ref.model.lora_rank": (
        8,
        {**KL, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4},
        {"actor_train.model_args.lora_rank": 8, "reference": None, "is_own_reference": True},
    ),
    "actor_rollout_ref.model.lora_alpha": (16, {}, {"actor_train.model_args.lora_alpha": 16}),
    "actor_rollout_ref.model.target_modules": (["q"], {}, {"actor_train.model_args.lora_target": ["q"]}),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (4, KL, {"reference.infer_batch_size": 4}),
    f"{R}.name": ("vllm", {}, {"actor_infer.strategy_args.strategy_name": "vllm"}),
    f"{R}.temperature": (0.7, {}, {"actor_infer.generating_args.temperature": 0.7}),
    f"{R}.top_k": (20, {}, {"actor_infer.generating_args.top_k": 20}),
    f"{R}.top_p": (0.9, {}, {"actor_infer.generating_args.top_p": 0.9}),
    f"{R}.n": (5, {}, {"num_return_sequences_in_group": 5}),
    f"{R}.prompt_length": (100, {}, {"prompt_length": 100}),
    f"{R}.response_length": (200, {}, {"response_length": 200}),
    **{
        f"{R}.{name}": (value, {f"{R}.name": "vllm"}, {ENGINE: {name: value}})
        for name, value in {
            "gpu_memory_utilization": 0.5,
            "enforce_eager": True,
            "max_num_batched_tokens": 8192,
        }.items()
    },
    f"{R}.dtype": ("bfloat16", {f"{R}.name": "vllm"}, {"actor_infer.model_args.dtype": "bf16"}),
    f"{R}.tensor_model_parallel_size": (2, {f"{R}.name": "vllm"}, {"actor_infer.num_gpus_per_worker": 2}),
    f"{R}.max_num_seqs": (1024, {}, {"max_running_requests": 1024}),
    f"{R}.log_prob_micro_batch_size_per_gpu": (4, {}, {"actor_train.infer_batch_size": 4}),
    "data.train_files": (
        ["a.parquet"],
        {},
        {
            f"{DATA}.file_name": ["a.parquet"],
            f"{DATA}.messages": "prompt",
            f"{DATA}.ground_truth": "reward_model.ground_truth",
            f"{DATA}.tag": "data_source",
        },
    ),
    "data.val_files": (
        "v.parquet",
        {"data.prompt_key": "chat"},
        {"validation.data_args.file_name": ["v.parquet"], "validation.data_args.messages": "chat"},
    ),
    "data.prompt_key": ("chat", {}, {f"{DATA}.messages": "chat"}),
    "data.image_key": (
        "pictures",
        {"data.train_files": [str(PICTURES)]},
        {f"{DATA}.file_name": [str(PICTURES)], f"{DATA}.image_key": "pictures"},
    ),
    "data.max_prompt_length": (100, {}, {"prompt_length": 100, "sequence_length": 1124}),
    "data.max_response_length": (
        200,
        {},
        {"response_length": 200, "actor_infer.generating_args.max_new_tokens": 200},
    ),
    "data.train_batch_size": (64, {}, {"rollout_batch_size": 64}),
    "data.val_batch_size": (64, {}, {"val_batch_size": 64}),
    "data.shuffle": (False, {}, {f"{DATA}.shuffle": False}),
    "data.filter_overlong_prompts": (True, {}, {f"{DATA}.filter_overlong_prompts": True}),
    "data.truncation": ("left", {}, {f"{DATA}.truncation": "left"}),
    "data.custom_cls": ({"path": "d.py", "name": "D"}, {}, {f"{DATA}.custom_cls.name": "D"}),
    "reward_model.overlong_buffer.enable": (True, {}, {"overlong_buffer.enable": True}),
    "reward_model.overlong_buffer.len": (99, {}, {"overlong_buffer.len": 99}),
    "reward_model.overlong_buffer.penalty_factor": (0.5, {}, {"overlong_buffer.penalty_factor": 0.5}),
    "custom_reward_function": (
        {"path": "f.py", "reward_kwargs": {"k": 1}},
        {"rewards.math_rule.verifiers.compute_score": 1.0},
        {"custom_reward_function.name": "compute_score", "custom_reward_function.kwargs": {"k": 1}},
    ),
    "trainer.total_training_steps": (9, {}, {"max_steps": 9}),
    "trainer.experiment_name": ("e", {}, {"exp_name": "e", "output_dir": Path("output/e")}),
    "trainer.project_name": ("p", {"trainer.experiment_name": "e"}, {"output_dir": Path("output/p/e")}),
    "trainer.nnodes": (2, {}, {"num_nodes": 2}),
    "trainer.n_gpus_per_node": (8, {}, {"num_gpus_per_node": 8}),
    "trainer.critic_warmup": (3, {}, {"critic_warmup": 3}),
    "trainer.default_local_dir": ("c", {}, {"checkpoint_config.output_dir": Path("c")}),
    "trainer.max_actor_ckpt_to_keep": (5, {}, {"checkpoint_config.keep": 5}),
    "trainer.ray_wait_register_center_timeout": (300, {}, {"rpc_timeout": 300}),
    "trainer.save_freq": (-1, {}, {"save_steps": 0}),
    "trainer.test_freq": (2, {}, {"eval_steps": 2}),
    "trainer.logger": (["console", "wandb"], {}, {"track_with": ["stdout", "wandb"]}),
    "trainer.resume_mode": (
        "resume_path",
        {"trainer.resume_from_path": "old"},
        {"resume_from_checkpoint": "old"},
    ),
    "trainer.resume_from_path": ("old", {"trainer.resume_mode": "resume_path"}, {"resume_from_checkpoint": "old"}),
    **verl_cases.STRATEGIES,
    **verl_cases.MORE,
}

CHATLEARN: dict[str, Case] = {
    f"{T}.pos_clip_ratio": (0.3, {}, {"pg_clip_high": 0.3}),
    f"{T}.neg_clip_ratio": (0.1, {}, {"pg_clip_low": 0.1}),
    f"{T}.entropy_coef": (0.01, {}, {"entropy_loss_coef": 0.01}),
    f"{T}.kl_coef": (
        0.02,
        {},
        {"kl_loss_coef": 0.02, "use_kl_loss": True, "kl_penalty": "low_var_kl", "needs_reference": True},
    ),
    f"{T}.use_group_sequence_policy": (True, {}, {"policy_loss": "gspo"}),
    "runtime_args.train_backend": ("megatron", {}, {"actor_train.strategy_args.strategy_name": "megatron_train"}),
    "runtime_args.rollout_backend": ("sglang", {}, {"actor_infer.strategy_args.strategy_name": "sglang"}),
    "runtime_args.exp_name": ("e", {}, {"exp_name": "e"}),
    "runtime_args.output_dir": ("o", {}, {"output_dir": Path("o")}),
    "runtime_args.data_path": ("d.jsonl", {}, {f"{DATA}.file_name": ["d.jsonl"]}),
    "runtime_args.eval_data_path": ("v.jsonl", {}, {"validation.data_args.file_name": ["v.jsonl"]}),
    "runtime_args.num_episode": (9, {}, {"max_steps": 9}),
    "runtime_args.save_episode_interval": (7, {}, {"save_steps": 7}),
    "runtime_args.eval_episode_interval": (5, {}, {"eval_steps": 5}),
    "runtime_args.data_shuffle": (False, {}, {f"{DATA}.shuffle": False}),
    "runtime_args.sample_per_episode": (
        512,
        {f"{P}.num_inference_per_prompt": 32},
        {"rollout_batch_size": 16, "num_return_sequences_in_group": 32},
    ),
    "runtime_args.train_global_batch_size": (
        128,
        {"runtime_args.sample_per_episode": 512, f"{P}.num_inference_per_prompt": 32},
        {"mini_batches": 4},
    ),
    "runtime_args.train_micro_batch_size": (4, {}, {f"{TRAIN}.per_device_train_batch_size": 4}),
    "runtime_args.log_args_dict.enable_wandb": (True, {}, {"track_with": ["wandb"]}),
    "runtime_args.log_args_dict.log_dir": ("l", {}, {"logging_dir": Path("l")}),
    f"{T}.optimizer.lr": (2e-6, {}, {f"{TRAIN}.learning_rate": 2e-6}),
    f"{T}.optimizer.clip_grad": (2, {}, {"max_grad_norm": 2}),
    f"{T}.optimizer.weight_decay": (0.1, {}, {f"{TRAIN}.weight_decay": 0.1}),
    f"{T}.generation_batch_size": (4, {}, {"actor_train.infer_batch_size": 4}),
    f"{T}.train_micro_batch_size": (4, {}, {f"{TRAIN}.per_device_train_batch_size": 4}),
    f"{T}.packing": (True, {f"{T}.max_token_in_packing": 9000}, {"actor_train.use_sequence_packing": True}),
    f"{T}.max_token_in_packing": (8000, {f"{T}.packing": True}, {f"{TRAIN}.max_tokens_per_microbatch": 8000}),
    f"{T}.load": ("M", {}, {"pretrain": "M"}),
    f"{T}.max_prompt_tokens_length": (100, {}, {"prompt_length": 100}),
    f"{T}.max_response_tokens_length": (200, {}, {"response_length": 200}),
    f"{T}.seq_length": (700, {}, {"sequence_length": 700}),
    f"{T}.gradient_checkpointing": (False, {}, {"actor_train.model_args.disable_gradient_checkpointing": True}),
    f"{T}.bf16": (True, {}, {"actor_train.model_args.dtype": "bf16"}),
    "models.ref_policy.generation_batch_size": (4, {f"{T}.kl_coef": 0.1}, {"reference.infer_batch_size": 4}),
    "models.ref_policy.load": ("R", {f"{T}.kl_coef": 0.1}, {"reference.model_args.model_name_or_path": "R"}),
    "models.ref_policy.bf16": (True, {f"{T}.kl_coef": 0.1}, {"reference.model_args.dtype": "bf16"}),
    f"{P}.num_inference_per_prompt": (32, {}, {"num_return_sequences_in_group": 32}),
    f"{P}.max_prompt_tokens_length": (100, {}, {"prompt_length": 100}),
    f"{P}.max_response_tokens_length": (
        200,
        {},
        {"response_length": 200, "actor_infer.generating_args.max_new_tokens": 200},
    ),
    f"{P}.temperature": (0.7, {}, {"actor_infer.generating_args.temperature": 0.7}),
    f"{P}.top_p": (0.9, {}, {"actor_infer.generating_args.top_p": 0.9}),
    f"{P}.eval_temperature": (0.6, {}, {"val_generating.temperature": 0.6}),
    f"{P}.eval_top_p": (0.95, {}, {"val_generating.top_p": 0.95}),
    f"{P}.eval_top_k": (20, {}, {"val_generating.top_k": 20}),
    f"{P}.load": ("M", {}, {"pretrain": "M"}),
    f"{P}.enable_thinking": (True, {}, {"actor_train.data_args.enable_thinking": True}),
    f"{P}.generation_batch_size": (256, {}, {"max_running_requests": 256}),
    f"{P}.gpu_memory_utilization": (
        0.8,
        {"runtime_args.rollout_backend": "vllm"},
        {ENGINE: {"gpu_memory_utilization": 0.8}},
    ),
    f"{P}.tensor_model_parallel_size": (
        2,
        {"runtime_args.rollout_backend": "vllm"},
        {"actor_infer.num_gpus_per_worker": 2},
    ),
    **chatlearn_cases.MORE,
}

MINDSPEED_ADAPTIVE = {"rl_config.kl_ctrl_type": "adaptive", "rl_config.init_kl_coef": 0.01, "rl_config.kl_target": 0.2}

MINDSPEED: dict[str, Case] = {
    "rl_config.gamma": (0.9, {}, {"gamma": 0.9}),
    "rl_config.lam": (0.8, {}, {"lambd": 0.8}),
    "rl_config.clip_ratio": (0.1, {}, {"pg_clip": 0.1}),
    "rl_config.entropy_coeff": (0.01, {}, {"entropy_loss_coef": 0.01}),
    "rl_config.epochs": (2, {}, {"ppo_epochs": 2}),
    "rl_config.advantage_whiten": (True, {}, {"whiten_advantages": True}),
    "rl_config.max_prompt_length": (100, {}, {"prompt_length": 100}),
    "rl_config.adv_estimator": ("group_norm", {"num_return_sequences_in_group": 8}, {"adv_estimator": "grpo"}),
    "rl_config.kl_penalty": ("low_var_kl", {}, {"kl_penalty": "low_var_kl"}),
    "rl_config.kl_ctrl_type": (
        "adaptive",
        {"rl_config.init_kl_coef": 0.01, "rl_config.kl_target": 0.2},
        {"target_kl": 0.2, "init_kl_coef": 0.01, "add_token_level_kl": True, "needs_reference": True},
    ),
    "rl_config.init_kl_coef": (
        0.02,
        {},
        {"kl_loss_coef": 0.02, "use_kl_loss": True, "needs_reference": True},
    ),
    "rl_config.kl_target": (
        0.3,
        {"rl_config.kl_ctrl_type": "adaptive", "rl_config.init_kl_coef": 0.01},
        {"target_kl": 0.3},
    ),
    "rl_config.kl_horizon": (700, MINDSPEED_ADAPTIVE, {"kl_horizon": 700}),
    "rl_config.mini_batch_size": (16, {"megatron_training.global_batch_size": 64}, {"mini_batches": 4}),
    "rl_config.n_samples_per_prompt": (8, {}, {"num_return_sequences_in_group": 8}),
    "rl_config.actor_forward_micro_batch_size": (4, {}, {"actor_train.infer_batch_size": 4}),
    "rl_config.ref_forward_micro_batch_size": (4, {"rl_config.init_kl_coef": 0.1}, {"reference.infer_batch_size": 4}),
    "rl_config.update_micro_batch_size": (4, {}, {f"{TRAIN}.per_device_train_batch_size": 4}),
    "rl_config.verifier_function": (["acc"], {}, {"rewards.all.verifier_function": ["acc"]}),
    "rl_config.verifier_weight": (
        [0.5],
        {"rl_config.verifier_function": ["acc"]},
        {"rewards.all.verifier_weight": [0.5]},
    ),
    "rl_config.verifier_parallel": (
        2,
        {"rl_config.verifier_function": ["acc"]},
        {"rewards.all.verifier_parallel": 2},
    ),
    "rl_config.verifier_timeout": (
        5,
        {"rl_config.verifier_function": ["acc"]},
        {"rewards.all.verifier_timeout": 5},
    ),
    "rl_config.use_tensorboard": (True, {}, {"track_with": ["tensorboard"]}),
    "rl_config.use_wandb": (True, {"rl_config.use_tensorboard": True}, {"track_with": ["wandb"]}),
    "megatron_training.global_batch_size": (32, {}, {"rollout_batch_size": 32}),
    "megatron_training.data_path": ("d", {}, {f"{DATA}.file_name": ["d"]}),
    "megatron_training.seq_length": (700, {}, {"sequence_length": 700}),
    "megatron_training.train_iters": (9, {}, {"max_steps": 9}),
    "megatron_training.save_interval": (7, {}, {"save_steps": 7}),
    "megatron_training.seed": (7, {}, {"seed": 7}),
    "megatron_training.bf16": (True, {}, {"actor_train.model_args.dtype": "bf16"}),
    "actor_config.micro_batch_size": (4, {}, {f"{TRAIN}.per_device_train_batch_size": 4}),
    "actor_config.lr": (2e-6, {}, {f"{TRAIN}.learning_rate": 2e-6}),
    "actor_config.weight_decay": (0.1, {}, {f"{TRAIN}.weight_decay": 0.1}),
    "actor_config.lr_warmup_fraction": (0.1, {}, {f"{TRAIN}.warmup_ratio": 0.1}),
    "actor_config.adam_beta1": (0.8, {}, {f"{TRAIN}.adam_beta1": 0.8}),
    "actor_config.adam_beta2": (0.95, {}, {f"{TRAIN}.adam_beta2": 0.95}),
    "actor_config.lr_decay_style": ("cosine", {}, {f"{TRAIN}.lr_scheduler_type": "cosine"}),
    "actor_config.clip_grad": (0.5, {}, {"max_grad_norm": 0.5}),
    "actor_config.load": ("M", {}, {"pretrain": "M"}),
    "actor_config.save": ("c", {}, {"checkpoint_config.output_dir": Path("c")}),
    **{
        f"generate_config.{section}{name}": (value, {}, {f"actor_infer.generating_args.{native}": value})
        for section in ("", "sampling_config.")
        for name, native, value in (
            ("max_tokens", "max_new_tokens", 64),
            ("top_p", "top_p", 0.9),
            ("top_k", "top_k", 20),
            ("temperature", "temperature", 0.7),
        )
    },
    "rl_config.clip_higher_enable": (True, {"rl_config.clip_ratio_low": 0.1}, {"pg_clip_low": 0.1}),
    "rl_config.clip_ratio_low": (0.1, {"rl_config.clip_higher_enable": True}, {"pg_clip_low": 0.1}),
    "rl_config.clip_ratio_high": (0.28, {"rl_config.clip_higher_enable": True}, {"pg_clip_high": 0.28}),
    "rl_config.cliprange_value": (0.5, {}, {"value_clip": 0.5}),
    "rl_config.token_level_loss": (True, {}, {"loss_agg_mode": "token-mean"}),
    "rl_config.overlong_buffer_enable": (True, {}, {"overlong_buffer.enable": True}),
    "rl_config.overlong_buffer": (100, {}, {"overlong_buffer.len": 100}),
    "rl_config.overlong_buffer_penalty_factor": (0.5, {}, {"overlong_buffer.penalty_factor": 0.5}),
    "rl_config.rollout_max_tokens": (300, {}, {"response_length": 300}),
    "rl_config.filter_groups_enable": (True, {"num_return_sequences_in_group": 4}, {"dynamic_sampling.enable": True}),
    "rl_config.filter_groups_max_batches": (
        5,
        {"rl_config.filter_groups_enable": True, "num_return_sequences_in_group": 4},
        {"dynamic_sampling.max_batches": 5},
    ),
    "rl_config.filter_groups_train_batch_size": (
        32,
        {
            "rl_config.filter_groups_enable": True,
            "num_return_sequences_in_group": 4,
            "megatron_training.global_batch_size": 32,
        },
        {"rollout_batch_size": 32},
    ),
    "rl_config.use_remove_padding": (True, {}, {"actor_train.use_sequence_packing": True}),
    "rl_config.use_dynamic_bsz": (
        True,
        {"rl_config.max_packing_token_size": 900},
        {f"{TRAIN}.max_tokens_per_microbatch": 900},
    ),
    "rl_config.max_packing_token_size": (
        900,
        {"rl_config.use_dynamic_bsz": True},
        {f"{TRAIN}.max_tokens_per_microbatch": 900},
    ),
    "rl_config.update_max_packing_token_size": (
        900,
        {"rl_config.use_dynamic_bsz": True, "rl_config.max_packing_token_size": 700},
        {f"{TRAIN}.max_tokens_per_microbatch": 900},
    ),
    "rl_config.actor_resource.num_npus": (
        16,
        {},
        {"actor_train.device_mapping": list(range(16)), "num_gpus_per_node": 8, "cluster": "ray"},
    ),
    "rl_config.blocking": (True, {}, {"async_generation_ratio": 0.0}),
    "rl_config.use_integrated_worker": (
        True,
        {"rl_config.actor_resource.num_npus": 2},
        {"actor_train.device_mapping": [0, 1], "actor_infer.device_mapping": [0, 1]},
    ),
    "megatron_training.dataset_additional_keys": (["labels"], {}, {f"{DATA}.ground_truth": "labels"}),
    "megatron_training.no_shuffle": (True, {}, {f"{DATA}.shuffle": False}),
    "megatron_training.stage": (
        "ray_ppo",
        {},
        {"adv_estimator": "gae"},
    ),
    "megatron_training.tokenizer_name_or_path": ("M", {"actor_config.load": "m"}, {"pretrain": "M"}),
    "megatron_training.use_mcore_models": (True, {}, {"actor_train.strategy_args.strategy_name": "megatron_train"}),
    "megatron_training.lora_r": (8, {}, {"actor_train.model_args.lora_rank": 8}),
    "megatron_training.lora_alpha": (16, {"megatron_training.lora_r": 8}, {"actor_train.model_args.lora_alpha": 16}),
    "megatron_training.lora_target_modules": (
        ["linear_qkv", "linear_proj"],
        {"megatron_training.lora_r": 8},
        {"actor_train.model_args.lora_target": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    ),
    "megatron_training.sequence_parallel": (
        True,
        {"actor_config.tensor_model_parallel_size": 2, "rl_config.actor_resource.num_npus": 2},
        {f"{TRAINER}.sequence_parallel": True},
    ),
    **{
        f"megatron_training.{key}": (value, beside, {f"{TRAINER}.{native}": value})
        for key, native, value, beside in (
            ("use_distributed_optimizer", "use_distributed_optimizer", True, {}),
            ("recompute_granularity", "recompute_granularity", "full", {}),
            ("recompute_num_layers", "recompute_num_layers", 2, {"actor_config.recompute_granularity": "full"}),
            ("recompute_method", "recompute_method", "block", {"actor_config.recompute_granularity": "full"}),
            ("moe_token_dispatcher_type", "moe_token_dispatcher_type", "allgather", {}),
            ("moe_grouped_gemm", "moe_grouped_gemm", True, {}),
            ("moe_permutation_async_comm", "moe_shared_expert_overlap", True, {}),
            ("overlap_grad_reduce", "overlap_grad_reduce", True, {}),
            ("overlap_param_gather", "overlap_param_gather", True, {"megatron_training.overlap_grad_reduce": True}),
            ("use_fused_swiglu", "bias_activation_fusion", True, {}),
            ("use_fused_rotary_pos_emb", "apply_rope_fusion", True, {}),
        )
    },
    "megatron_training.use_flash_attn": (True, {}, {f"{TRAINER}.attention_backend": "flash"}),
    "megatron_training.no_gradient_accumulation_fusion": (True, {}, {f"{TRAINER}.gradient_accumulation_fusion": False}),
    "actor_config.adam_eps": (1e-5, {}, {f"{TRAIN}.adam_epsilon": 1e-5}),
    "actor_config.min_lr": (1e-7, {"actor_config.lr": 1e-6}, {f"{TRAIN}.min_lr_ratio": 0.1}),
    "actor_config.num_layer_list": (
        "6,8,8,7",
        {"actor_config.pipeline_model_parallel_size": 4, "rl_config.actor_resource.num_npus": 4},
        {f"{TRAINER}.num_layers_in_first_pipeline_stage": 6, f"{TRAINER}.num_layers_in_last_pipeline_stage": 7},
    ),
    "actor_config.recompute_granularity": ("full", {}, {f"{TRAINER}.recompute_granularity": "full"}),
    **{
        f"actor_config.{key}": (value, {"actor_config.recompute_granularity": "full"}, {f"{TRAINER}.{key}": value})
        for key, value in (("recompute_num_layers", 2), ("recompute_method", "block"))
    },
    **{
        f"{section}.{key}": (
            2,
            {**beside, "rl_config.actor_resource.num_npus": 4},
            {f"{role}.strategy_args.strategy_config.{key}": 2},
        )
        for section, role, beside in (
            ("actor_config", "actor_train", {}),
            ("critic_config", "critic", {"adv_estimator": "gae"}),
        )
        for key in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        )
    },
    **{
        f"critic_config.{key}": (
            value,
            {"adv_estimator": "gae", **beside},
            {f"critic.training_args.{native}": expected},
        )
        for key, value, native, expected, beside in (
            ("micro_batch_size", 4, "per_device_train_batch_size", 4, {}),
            ("lr", 2e-6, "learning_rate", 2e-6, {}),
            ("weight_decay", 0.1, "weight_decay", 0.1, {}),
            ("lr_warmup_fraction", 0.1, "warmup_ratio", 0.1, {}),
            ("adam_beta1", 0.8, "adam_beta1", 0.8, {}),
            ("adam_beta2", 0.95, "adam_beta2", 0.95, {}),
            ("adam_eps", 1e-5, "adam_epsilon", 1e-5, {}),
            ("lr_decay_style", "cosine", "lr_scheduler_type", "cosine", {}),
            ("min_lr", 1e-7, "min_lr_ratio", 0.1, {"critic_config.lr": 1e-6}),
        )
    },
    "generate_config.infer_tensor_parallel_size": (2, {}, {"actor_infer.num_gpus_per_worker": 2}),
    "generate_config.infer_pipeline_parallel_size": (2, {}, {f"{ENGINE}.pipeline_parallel_size": 2}),
    "generate_config.infer_expert_parallel_size": (4, {}, {f"{ENGINE}.enable_expert_parallel": True}),
    **{
        f"generate_config.{key}": (value, {}, {f"{ENGINE}.{key}": value})
        for key, value in (
            ("gpu_memory_utilization", 0.5),
            ("enforce_eager", True),
            ("max_num_batched_tokens", 4096),
            ("enable_expert_parallel", True),
            ("enable_prefix_caching", True),
        )
    },
    "generate_config.dtype": ("bfloat16", {}, {"actor_infer.model_args.dtype": "bf16"}),
    "generate_config.max_num_seqs": (64, {}, {"max_running_requests": 64}),
    "generate_config.max_model_len": (700, {}, {"sequence_length": 700}),
}

ALGORITHM = "algorithm"
TASKS = "buffer.explorer_input.taskset"

TRINITY: dict[str, Case] = {
    "algorithm.algorithm_type": (
        "opmd",
        {"algorithm.repeat_times": 4},
        {"algorithm_type": "opmd", "adv_estimator": "opmd", "policy_loss": "opmd", "loss_agg_mode": "token-mean"},
    ),
    "algorithm.repeat_times": (4, {}, {"num_return_sequences_in_group": 4}),
    "algorithm.advantage_fn": ("ppo", {}, {"adv_estimator": "gae"}),
    "algorithm.advantage_fn_args": (
        {"gamma": 0.9, "lam": 0.8},
        {},
        {"gamma": 0.9, "lambd": 0.8},
    ),
    "algorithm.policy_loss_fn": ("opmd", {}, {"policy_loss": "opmd"}),
    "algorithm.policy_loss_fn_args": (
        {"clip_range_low": 0.1, "tau": 2.0},
        {"algorithm.policy_loss_fn": "opmd"},
        {"pg_clip_low": 0.1, "policy_loss_options": {"tau": 2.0}},
    ),
    "algorithm.kl_loss_fn": (
        "corrected_k3",
        {},
        {"use_kl_loss": True, "kl_penalty": "low_var_kl", "kl_loss_coef": 0.001, "use_bias_correction_kl": True},
    ),
    "algorithm.kl_loss_fn_args": ({"kl_coef": 0.02}, {"algorithm.kl_loss_fn": "k2"}, {"kl_loss_coef": 0.02}),
    "algorithm.kl_penalty_fn": (
        "k3",
        {},
        {"kl_penalty": "low_var_kl", "init_kl_coef": 0.001, "add_token_level_kl": True},
    ),
    "algorithm.kl_penalty_fn_args": (
        {"adaptive": True, "kl_coef": 0.02, "target_kl": 0.2, "horizon": 700},
        {"algorithm.kl_penalty_fn": "k1"},
        {"init_kl_coef": 0.02, "target_kl": 0.2, "kl_horizon": 700},
    ),
    "algorithm.entropy_loss_fn": (
        "default",
        {"algorithm.entropy_loss_fn_args": {"entropy_coef": 0.01}},
        {"entropy_loss_coef": 0.01},
    ),
    "algorithm.entropy_loss_fn_args": ({"entropy_coef": 0.02}, {}, {"entropy_loss_coef": 0.02}),
    "algorithm.loss_agg_mode": ("token-mean", {"algorithm.repeat_times": 4}, {"loss_agg_mode": "token-mean"}),
    "algorithm.optimizer.lr": (2e-6, {}, {f"{TRAIN}.learning_rate": 2e-6}),
    "algorithm.optimizer.weight_decay": (0.1, {}, {f"{TRAIN}.weight_decay": 0.1}),
    "algorithm.optimizer.lr_warmup_steps": (7, {}, {f"{TRAIN}.warmup_steps": 7}),
    "algorithm.optimizer.lr_warmup_steps_ratio": (0.1, {}, {f"{TRAIN}.warmup_ratio": 0.1}),
    "algorithm.optimizer.warmup_style": ("cosine", {}, {f"{TRAIN}.lr_scheduler_type": "cosine"}),
    "model.model_path": ("M", {}, {"pretrain": "M"}),
    "model.critic_model_path": (
        "V",
        {"algorithm.advantage_fn": "ppo"},
        {"critic.model_args.model_name_or_path": "V", "adv_estimator": "gae"},
    ),
    "model.custom_chat_template": ("{{ x }}", {}, {f"{DATA}.template": "{{ x }}"}),
    "model.chat_template_path": ("t.jinja", {}, {f"{DATA}.template": "t.jinja"}),
    "model.max_model_len": (700, {}, {"sequence_length": 700}),
    "model.max_prompt_tokens": (100, {}, {"prompt_length": 100}),
    "model.max_response_tokens": (
        200,
        {},
        {"response_length": 200, "actor_infer.generating_args.max_new_tokens": 200},
    ),
    "model.repetition_penalty": (1.1, {}, {"actor_infer.generating_args.repetition_penalty": 1.1}),
    "buffer.batch_size": (32, {}, {"rollout_batch_size": 32}),
    "buffer.train_batch_size": (
        64,
        {"buffer.batch_size": 32, "algorithm.repeat_times": 8},
        {"mini_batches": 4},
    ),
    "buffer.total_steps": (9, {}, {"max_steps": 9}),
    f"{TASKS}.path": ("d.jsonl", {}, {f"{DATA}.file_name": ["d.jsonl"]}),
    f"{TASKS}.format.prompt_key": ("question", {}, {f"{DATA}.prompt": "question"}),
    f"{TASKS}.format.messages_key": ("chat", {}, {f"{DATA}.messages": "chat"}),
    f"{TASKS}.format.response_key": ("answer", {}, {f"{DATA}.ground_truth": "answer"}),
    f"{TASKS}.format.image_key": ("pictures", {}, {f"{DATA}.image_key": "pictures"}),
    f"{TASKS}.format.system_prompt": ("Be brief.", {}, {f"{DATA}.system_prompt": "Be brief."}),
    f"{TASKS}.rollout_args.temperature": (0.7, {}, {"actor_infer.generating_args.temperature": 0.7}),
    "trainer.total_steps": (9, {}, {"max_steps": 9}),
    "trainer.save_interval": (7, {}, {"save_steps": 7}),
    "trainer.grad_clip": (0.5, {}, {"max_grad_norm": 0.5}),
    "trainer.trainer_strategy": ("megatron", {}, {"actor_train.strategy_args.strategy_name": "megatron_train"}),
    "trainer.use_dynamic_bsz": (
        True,
        {"trainer.max_token_len_per_gpu": 9000},
        {f"{TRAIN}.max_tokens_per_microbatch": 9000},
    ),
    "trainer.max_token_len_per_gpu": (
        8000,
        {"trainer.use_dynamic_bsz": True},
        {f"{TRAIN}.max_tokens_per_microbatch": 8000},
    ),
    "explorer.eval_interval": (7, {}, {"eval_steps": 7}),
    "explorer.rollout_model.engine_type": (
        "vllm_async",
        {},
        {"actor_infer.strategy_args.strategy_name": "vllm"},
    ),
    "explorer.rollout_model.tensor_parallel_size": (
        2,
        {"explorer.rollout_model.engine_type": "vllm"},
        {"actor_infer.num_gpus_per_worker": 2},
    ),
    "synchronizer.sync_interval": (10, {}, {"actor_infer.model_update_frequency": 10}),
    "name": ("e", {}, {"exp_name": "e", "output_dir": Path("output/e")}),
    "checkpoint_root_dir": ("o", {"project": "p", "name": "e"}, {"output_dir": Path("o/p/e")}),
    "project": ("p", {"name": "e"}, {"output_dir": Path("output/p/e")}),
    "mode": ("train", {"experience.path": "x"}, {"mode": "train"}),
    "continue_from_checkpoint": (True, {}, {"resume_from_checkpoint": True}),
    "cluster.node_num": (2, {}, {"num_nodes": 2}),
    "cluster.gpu_per_node": (8, {}, {"num_gpus_per_node": 8}),
    "monitor.monitor_type": ("wandb", {}, {"track_with": ["wandb"]}),
    **trinity_cases.MORE,
}

_OF_GUIDES = (
    {**VERL, **schema_cases.VERL},
    CHATLEARN,
    {**MINDSPEED, **schema_cases.MINDSPEED},
    {**TRINITY, **schema_cases.TRINITY},
)
CASES = dict(zip([guide.name for guide in GUIDES], _OF_GUIDES, strict=True))

SAME_AS_DEFAULT = {
    "synchronizer.sync_method",
    "rl_config.use_tensorboard",
    "rl_config.blocking",
    "continue_from_checkpoint",
    "critic.strategy",
    "rl_config.kl_penalty",
}
"""Keys of which the value in the case is also what happens without them."""


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of dotted keys."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def config(*parts: Mapping[str, Any], without: Mapping[str, Any] = {}) -> RLVRConfig:
    """Load an RLVR configuration of dotted keys, with what it needs to load unless ``without`` sets that itself."""
    base = {
        path: value
        for path, value in BASE.items()
        if not any(path == other or (path.startswith("rewards.") and other.startswith("rewards.")) for other in without)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return load(nested({**base, **{key: value for part in parts for key, value in part.items()}}), kind=RLVRConfig)


def value_at(loaded: RLConfig, path: str) -> Any:
    node: Any = loaded
    for key in path.split("."):
        if isinstance(node, list):
            node = node[int(key)] if int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else getattr(node, key, None)
    return node


ROWS = [(guide.name, row) for guide in GUIDES for row in guide.rows]
CHECKED = [pytest.param(row, id=f"{guide}:{row.key}") for guide, row in ROWS if row.only is not None]
UNUSED = {
    guide.name: [row for row in guide.rows if not row.targets and row.only is None and row.convert is None]
    for guide in GUIDES
}


# One test for all keys of a guide: there are eight hundred, and each is checked within two milliseconds.
@pytest.mark.parametrize("guide", CASES)
def test_a_key_of_a_guide_has_its_effect(guide: str) -> None:
    wrong = {}
    for key, (value, beside, expected) in CASES[guide].items():
        try:
            loaded = config(beside, {key: value}, without=expected)
            found = {path: value_at(loaded, path) for path in expected}
        except Exception as error:
            error.add_note(f"with the key {key}")
            raise
        if found != dict(expected):
            wrong[key] = {"expected": dict(expected), "found": found}
    assert not wrong


@pytest.mark.parametrize("guide", CASES)
def test_without_the_key_it_is_otherwise(guide: str) -> None:
    default = config()
    same = {
        key
        # Defaults, not the keys beside it: some of them cannot stand alone.
        for key, (_, _, expected) in CASES[guide].items()
        if all(value_at(default, path) == native for path, native in expected.items())
    }
    assert same <= SAME_AS_DEFAULT


def test_no_case_is_left_over() -> None:
    for guide in GUIDES:
        assert set(CASES[guide.name]) == {row.key for row in guide.rows if row.targets}


@pytest.mark.parametrize("row", CHECKED)
def test_a_value_that_asks_for_something_else_is_refused(row: Row) -> None:
    assert row.only is not None
    for value in row.only:
        config({row.key: value})
    with pytest.raises(ConfigError) as caught:
        config({row.key: "something else"})
    assert [problem.path for problem in caught.value.problems] == [row.key]
    assert row.note in caught.value.problems[0].fix


@pytest.mark.parametrize("guide", [guide for guide, rows in UNUSED.items() if rows])
def test_keys_without_effect_are_reported_with_the_reason(guide: str) -> None:
    for rows in together(UNUSED[guide]):
        with pytest.warns(ConfigWarning) as caught:
            load(nested({**BASE, **{row.key: 12 for row in rows}}), kind=RLVRConfig)
        said = [str(item.message).removesuffix(".").split(": no effect here: ") for item in caught]
        told = sorted((key, note) for keys, note in said for key in keys.split(", "))
        assert told == sorted((row.key, row.note) for row in rows), "each once"


def together(rows: Iterable[Row]) -> list[list[Row]]:
    """Divide rows so that no key of a part is a section of another one."""
    parts: list[list[Row]] = []
    for row in rows:
        apart = (part for part in parts if not any(is_inside(row.key, other.key) for other in part))
        part = next(apart, None)
        if part is None:
            parts.append(part := [])
        part.append(row)
    return parts


def is_inside(one: str, other: str) -> bool:
    """Whether one key is a section of the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


@pytest.mark.parametrize("kind", [RLVRConfig, AgenticConfig])
@pytest.mark.parametrize(
    "value", exhaustive_but([{"a": 1}, [{"b": 2}], "text", -1, True, 0, None, []], {"a": 1}, "text", None), ids=repr
)
def test_no_value_of_any_key_breaks_the_translation(value: Any, kind: type[RLConfig]) -> None:
    for guide in GUIDES:
        for row in guide.rows:
            translate(nested({row.key: value}), kind)
        translate(nested({row.key: value for row in guide.rows}), kind)
