"""What keys of Trinity-RFT set beyond its guide: engines, stores, experts, adapters, evaluations, the trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from tests.config import verl_cases

Case = tuple[Any, Mapping[str, Any], Mapping[str, Any]]
"""The value of the key, other keys beside it, and the native values that follow."""

TASKS, STORE = "buffer.explorer_input.taskset", "buffer.trainer_input.experience_buffer"
EXPERTS, ROLLOUT = "buffer.trainer_input.auxiliary_buffers.sft_dataset", "explorer.rollout_model"
TRAIN, DATA = "actor_train.training_args", "actor_train.data_args"
SAMPLING = "actor_infer.generating_args"
ENGINE, TRAINER = "actor_infer.strategy_args.strategy_config", "actor_train.strategy_args.strategy_config"
EXPERT: Final = {"policy_loss": "mix", f"{EXPERTS}.path": "expert.jsonl"}
TRAINS: Final = {"mode": "train", "synchronizer.sync_method": "checkpoint"}
REPLAY: Final = {f"{STORE}.replay_buffer.enable": True}
MEGATRON: Final = {"trainer.trainer_strategy": "megatron"}
OVERLONG: Final = {f"{TASKS}.reward_fn_args.enable_overlong_penalty": True, "model.max_response_tokens": 64}
EXTERNAL: Final = {"model.external_model.enable": True}

MORE: Final[dict[str, Case]] = {
    **{key: case for key, case in verl_cases.MORE.items() if key.startswith("algorithm.rollout_correction.")},
    "algorithm.bypass_old_logprobs": (True, {}, {"old_log_probs": "sampler"}),
    "algorithm.use_token_level_loss": (True, {}, {"loss_agg_mode": "token-mean"}),
    "algorithm.optimizer.betas": ([0.8, 0.95], {}, {f"{TRAIN}.adam_beta1": 0.8, f"{TRAIN}.adam_beta2": 0.95}),
    "algorithm.optimizer.clip_grad": (0.5, {}, {"max_grad_norm": 0.5}),
    "algorithm.optimizer.lr_scheduler_type": ("cosine", {}, {f"{TRAIN}.lr_scheduler_type": "cosine"}),
    "algorithm.optimizer.min_lr_ratio": (0.1, {}, {f"{TRAIN}.min_lr_ratio": 0.1}),
    "algorithm.sample_strategy_args.expert_data_ratio": (0.25, EXPERT, {"expert.expert_data_ratio": 0.25}),
    "model.temperature": (0.7, {}, {f"{SAMPLING}.temperature": 0.7}),
    "model.top_p": (0.9, {}, {f"{SAMPLING}.top_p": 0.9}),
    "model.top_k": (20, {}, {f"{SAMPLING}.top_k": 20}),
    "model.enable_prompt_truncation": (True, {}, {f"{DATA}.truncation": "right"}),
    "model.rope_scaling": (
        {"type": "yarn", "factor": 4.0, "rope_theta": 5e5},
        {},
        {"actor_train.model_args.rope_scaling.rope_type": "yarn", "actor_train.model_args.rope_theta": 5e5},
    ),
    "model.rope_theta": (5e5, {}, {"actor_train.model_args.rope_theta": 5e5}),
    "model.enable_thinking": (False, {}, {f"{DATA}.enable_thinking": False}),
    "model.lora_configs": (
        [{"lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}],
        {},
        {
            "actor_train.model_args.lora_rank": 8,
            "actor_train.model_args.lora_alpha": 16,
            "actor_train.model_args.lora_target": ["q_proj"],
        },
    ),
    "model.external_model.enable": (True, {}, {"actor_infer.strategy_args.strategy_name": "openai_endpoint"}),
    "model.external_model.model_name": ("m", EXTERNAL, {ENGINE: {"model": "m"}}),
    "model.external_model.base_url_env": (
        "HOME",
        EXTERNAL,
        {"actor_infer.strategy_args.strategy_name": "openai_endpoint", ENGINE: {"base_url": os.environ["HOME"]}},
    ),
    "model.external_model.api_key_env": ("KEY", EXTERNAL, {ENGINE: {"api_key_env": "KEY"}}),
    f"{TASKS}.subset_name": ("main", {}, {f"{DATA}.subset": "main"}),
    f"{TASKS}.split": ("train", {}, {f"{DATA}.split": "train"}),
    f"{TASKS}.rollout_args.top_p": (0.9, {}, {f"{SAMPLING}.top_p": 0.9}),
    f"{TASKS}.rollout_args.top_k": (20, {}, {f"{SAMPLING}.top_k": 20}),
    f"{TASKS}.rollout_args.max_tokens": (99, {}, {f"{SAMPLING}.max_new_tokens": 99}),
    f"{TASKS}.reward_fn_args.enable_overlong_penalty": (
        True,
        {f"{TASKS}.reward_fn_args.cache_length": 16, "model.max_response_tokens": 64},
        {"overlong_buffer.enable": True, "overlong_buffer.len": 16},
    ),
    f"{TASKS}.reward_fn_args.penalty_factor": (
        0.5,
        {**OVERLONG, f"{TASKS}.reward_fn_args.cache_length": 16},
        {"overlong_buffer.penalty_factor": 0.5},
    ),
    f"{TASKS}.reward_fn_args.cache_length": (16, OVERLONG, {"overlong_buffer.len": 16}),
    "buffer.explorer_input.eval_tasksets": (
        [
            {
                "path": "test.jsonl",
                "repeat_times": 4,
                "format": {"prompt_key": "question", "response_key": "answer"},
                "rollout_args": {"temperature": 0.6},
            }
        ],
        {},
        {
            "validation.data_args.file_name": ["test.jsonl"],
            "validation.data_args.prompt": "question",
            "validation.data_args.ground_truth": "answer",
            "validation_generating.temperature": 0.6,
            "validation_generating.num_return_sequences": 4,
        },
    ),
    "buffer.total_epochs": (
        2,
        {f"{TASKS}.path": "examples/data/arithmetic_val.jsonl", "buffer.batch_size": 8},
        {"max_steps": 64, f"{DATA}.file_name": ["examples/data/arithmetic_val.jsonl"]},
    ),
    f"{STORE}.storage_type": (
        "sql",
        {**TRAINS, f"{STORE}.path": "exp.db"},
        {"experience.type": "sql", "experience.path": "sqlite:///exp.db"},
    ),
    f"{STORE}.path": ("sqlite:///exp.db", TRAINS, {"experience.type": "sql", "experience.path": "sqlite:///exp.db"}),
    f"{STORE}.format.enable_thinking": (False, {}, {f"{DATA}.enable_thinking": False}),
    f"{STORE}.replay_buffer.enable": (True, {}, {"experience.fresh_share": 0.5, "experience.uses": 2}),
    f"{STORE}.replay_buffer.priority_fn": ("linear_decay", REPLAY, {"experience.priority": "linear_decay"}),
    f"{STORE}.replay_buffer.priority_fn_args.decay": (0.5, REPLAY, {"experience.priority_options": {"decay": 0.5}}),
    f"{STORE}.replay_buffer.priority_fn_args.use_count_limit": (3, REPLAY, {"experience.uses": 3}),
    f"{STORE}.replay_buffer.reuse_cooldown_time": (40, REPLAY, {"experience.cooldown": 1}),
    f"{EXPERTS}.path": ("expert.jsonl", {"policy_loss": "mix"}, {"expert.data_args.file_name": ["expert.jsonl"]}),
    f"{EXPERTS}.format.messages_key": ("m", EXPERT, {"expert.messages_key": "m"}),
    f"{EXPERTS}.format.prompt_key": (
        "p",
        {**EXPERT, f"{EXPERTS}.format.response_key": "r"},
        {"expert.prompt_key": "p"},
    ),
    f"{EXPERTS}.format.response_key": ("r", EXPERT, {"expert.response_key": "r"}),
    f"{EXPERTS}.split": ("train", EXPERT, {"expert.data_args.split": "train"}),
    f"{EXPERTS}.subset_name": ("main", EXPERT, {"expert.data_args.subset": "main"}),
    "explorer.eval_on_startup": (False, {}, {"eval_at_start": False}),
    "explorer.max_timeout": (90, {}, {"generation_timeout": 90}),
    "explorer.max_retry_times": (2, {}, {"max_retry_times": 2}),
    "explorer.over_rollout.ratio": (0.25, {}, {"over_rollout.ratio": 0.25}),
    "explorer.over_rollout.wait_after_min": (
        5,
        {"explorer.over_rollout.ratio": 0.25},
        {"over_rollout.wait_after_min": 5},
    ),
    "explorer.runner_per_model": (4, {"algorithm.repeat_times": 8}, {"max_running_requests": 32}),
    f"{ROLLOUT}.gpu_memory_utilization": (0.8, {}, {ENGINE: {"gpu_memory_utilization": 0.8}}),
    f"{ROLLOUT}.enforce_eager": (True, {}, {ENGINE: {"enforce_eager": True}}),
    f"{ROLLOUT}.enable_prefix_caching": (False, {}, {ENGINE: {"enable_prefix_caching": False}}),
    f"{ROLLOUT}.enable_chunked_prefill": (True, {}, {ENGINE: {"enable_chunked_prefill": True}}),
    f"{ROLLOUT}.max_model_len": (4096, {}, {ENGINE: {"max_model_len": 4096}}),
    f"{ROLLOUT}.dtype": (
        "bfloat16",
        {},
        {"actor_infer.model_args.dtype": "bf16", "actor_infer.strategy_args.strategy_name": "vllm"},
    ),
    f"{ROLLOUT}.seed": (7, {}, {"seed": 7}),
    f"{ROLLOUT}.enable_thinking": (True, {}, {f"{DATA}.enable_thinking": True}),
    f"{ROLLOUT}.chat_template": ("chatml", {}, {f"{DATA}.template": "chatml"}),
    f"{ROLLOUT}.repetition_penalty": (1.1, {}, {f"{SAMPLING}.repetition_penalty": 1.1}),
    "synchronizer.sync_offset": (1, {}, {"async_generation_ratio": 1.0}),
    "synchronizer.sync_style": ("explorer_driven", {}, {"async_generation_ratio": 1.0}),
    "synchronizer.sync_method": ("nccl", {}, {"weight_sync.method": "auto"}),
    "synchronizer.sync_timeout": (90, {}, {"weight_sync.timeout": 90}),
    "trainer.actor_grad_clip": (0.5, {}, {"max_grad_norm": 0.5}),
    "trainer.critic_warmup": (3, {}, {"critic_warmup": 3}),
    "trainer.max_checkpoints_to_keep": (5, {}, {"checkpoint_config.keep": 5}),
    "trainer.use_remove_padding": (True, {}, {"actor_train.use_remove_padding": True}),
    "trainer.ulysses_sequence_parallel_size": (2, {}, {TRAINER: {"ulysses_size": 2}}),
    **{
        f"trainer.{name}": (True, {}, {TRAINER: {"offload_params": True}})
        for name in ("param_offload", "optimizer_offload", "offload_policy")
    },
    **{
        f"trainer.megatron.{name}": (2, MEGATRON, {TRAINER: {name: 2}})
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        )
    },
    "trainer.megatron.sequence_parallel": (
        True,
        {**MEGATRON, "trainer.megatron.tensor_model_parallel_size": 2},
        {f"{TRAINER}.sequence_parallel": True},
    ),
    "trainer.megatron.virtual_pipeline_model_parallel_size": (
        2,
        {**MEGATRON, "trainer.megatron.pipeline_model_parallel_size": 2},
        {f"{TRAINER}.virtual_pipeline_model_parallel_size": 2},
    ),
    "monitor.monitor_args": ({"entity": "us"}, {}, {"tracker_kwargs": {"entity": "us"}}),
    "monitor.enable_ray_timeline": (True, {}, {"enable_ray_timeline": True}),
}
"""By key."""
