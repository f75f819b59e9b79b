"""What keys of verl set: how models are spread over devices, and what else its configuration classes have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Case = tuple[Any, Mapping[str, Any], Mapping[str, Any]]
"""The value of the key, other keys beside it, and the native values that follow."""

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
M, F = "actor_rollout_ref.model", "actor_rollout_ref.ref"
C = "algorithm.rollout_correction"
TRAIN = "actor_train.training_args"
ENGINE = "actor_infer.strategy_args.strategy_config"
VALIDATION = "validation.generating_args"
KL: Final = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01}
EIGHT: Final = {"trainer.n_gpus_per_node": 8}
REWARD: Final = {"reward_model.enable": True}

_ROLES: Final[Mapping[str, tuple[str, str, str, Mapping[str, Any]]]] = {
    "actor_train": (f"{A}.fsdp_config", f"{A}.megatron", "train", {}),
    "reference": (f"{F}.fsdp_config", f"{F}.megatron", "infer", KL),
    "critic": ("critic.model.fsdp_config", "critic.megatron", "train", {}),
    "reward": ("reward_model.model.fsdp_config", "reward_model.megatron", "infer", REWARD),
}
"""Sections of FSDP's and Megatron's options by role, what its strategies end with, and what makes the role used."""

_FSDP: Final[Mapping[str, tuple[Any, str, Any]]] = {
    "param_offload": (True, "offload_params", True),
    "optimizer_offload": (True, "offload_params", True),
    "offload_policy": (True, "offload_params", True),
    "reshard_after_forward": (False, "reshard_after_forward", False),
    "fsdp_size": (4, "fsdp_size", 4),
    "ulysses_sequence_parallel_size": (2, "ulysses_size", 2),
    "mixed_precision.reduce_dtype": ("bfloat16", "reduce_dtype", "bf16"),
}

_TRANSFORMER: Final = {
    "num_layers_in_first_pipeline_stage": 3,
    "num_layers_in_last_pipeline_stage": 3,
    "recompute_granularity": "full",
    "moe_token_dispatcher_type": "flex",
    "moe_grouped_gemm": True,
    "moe_router_dtype": "fp32",
    "moe_permute_fusion": True,
    "moe_shared_expert_overlap": True,
    "moe_router_force_load_balancing": True,
    "attention_backend": "flash",
    "bias_activation_fusion": True,
    "bias_dropout_fusion": True,
    "apply_rope_fusion": True,
    "gradient_accumulation_fusion": True,
}
_PARALLEL: Final = {
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "grad_reduce_in_fp32": False,
}
_SIZES: Final = {
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 2,
    "expert_model_parallel_size": 4,
    "expert_tensor_parallel_size": 1,
    "use_distributed_optimizer": False,
}


def _strategy(role: str) -> dict[str, Case]:
    fsdp, megatron, purpose, used = _ROLES[role]
    arguments = f"{role}.strategy_args"
    transformer = f"{megatron}.override_transformer_config"
    beside = {**used, f"{A}.strategy": "megatron"}

    def spread(engine: str, option: str, value: Any) -> dict[str, Any]:
        return {f"{arguments}.strategy_name": engine, f"{arguments}.strategy_config.{option}": value}

    def on_fsdp(option: str, value: Any) -> dict[str, Any]:
        return spread(f"fsdp_{purpose}", option, value)

    def on_megatron(option: str, value: Any) -> dict[str, Any]:
        return spread(f"megatron_{purpose}", option, value)

    named = {
        f"{megatron}.{section}.{key}": (key, value)
        for section, options in (("override_transformer_config", _TRANSFORMER), ("override_ddp_config", _PARALLEL))
        for key, value in options.items()
    }
    named.update({f"{megatron}.{key}": (key, value) for key, value in _SIZES.items()})
    tensor = {**on_megatron("tensor_model_parallel_size", 2), f"{arguments}.strategy_config.sequence_parallel": True}
    pipeline = {f"{megatron}.pipeline_model_parallel_size": 2}
    full, selective = ({f"{transformer}.recompute_granularity": each} for each in ("full", "selective"))
    return {
        **{f"{fsdp}.{key}": (value, used, on_fsdp(name, ours)) for key, (value, name, ours) in _FSDP.items()},
        f"{fsdp}.model_dtype": ("bfloat16", used, {f"{role}.model_args.dtype": "bf16"}),
        f"{fsdp}.dtype": ("bfloat16", used, {f"{role}.model_args.dtype": "bf16"}),
        **{key: (value, beside, on_megatron(name, value)) for key, (name, value) in named.items()},
        f"{megatron}.tensor_model_parallel_size": (2, beside, tensor),
        f"{megatron}.sequence_parallel": (
            False,
            {**beside, f"{megatron}.tensor_model_parallel_size": 2},
            on_megatron("sequence_parallel", False),
        ),
        f"{megatron}.virtual_pipeline_model_parallel_size": (
            2,
            {**beside, **pipeline},
            on_megatron("virtual_pipeline_model_parallel_size", 2),
        ),
        f"{megatron}.dist_checkpointing_path": (
            "C",
            {**beside, f"{megatron}.use_dist_checkpointing": True},
            on_megatron("load", "C"),
        ),
        f"{transformer}.recompute_method": ("block", {**beside, **full}, on_megatron("recompute_method", "block")),
        f"{transformer}.recompute_num_layers": (2, {**beside, **full}, on_megatron("recompute_num_layers", 2)),
        f"{transformer}.recompute_modules": (
            ["mlp"],
            {**beside, **selective},
            on_megatron("recompute_modules", ["mlp"]),
        ),
        f"{megatron}.override_ddp_config.bucket_size": (9, beside, on_megatron("ddp_bucket_size", 9)),
        f"{megatron}.dtype": ("bfloat16", beside, {f"{role}.model_args.dtype": "bf16"}),
        f"{megatron}.use_remove_padding": (True, beside, {f"{role}.use_sequence_packing": True}),
    }


STRATEGIES: Final[dict[str, Case]] = {key: case for role in _ROLES for key, case in _strategy(role).items()}


def _optimizer(section: str, target: str) -> dict[str, Case]:
    return {
        f"{section}.betas": ([0.8, 0.95], {}, {f"{target}.adam_beta1": 0.8, f"{target}.adam_beta2": 0.95}),
        f"{section}.clip_grad": (0.5, {}, {"max_grad_norm": 0.5}),
        f"{section}.lr_scheduler_type": ("cosine", {}, {f"{target}.lr_scheduler_type": "cosine"}),
        f"{section}.lr_scheduler": ("cosine", {}, {f"{target}.lr_scheduler_type": "cosine"}),
        f"{section}.warmup_steps_ratio": (0.1, {}, {f"{target}.warmup_ratio": 0.1}),
        f"{section}.lr_decay_style": ("WSD", {}, {f"{target}.lr_scheduler_type": "wsd"}),
        f"{section}.min_lr": (1e-6, {f"{section}.lr": 4e-6}, {f"{target}.min_lr_ratio": 0.25}),
    }


MORE: Final[dict[str, Case]] = {
    f"{M}.override_config": (
        {"attn_implementation": "eager", "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {},
        {"actor_train.model_args.rope_scaling.factor": 2.0, "actor_train.model_args.attn_implementation": "eager"},
    ),
    **_optimizer(f"{A}.optim", TRAIN),
    **_optimizer("critic.optim", "critic.training_args"),
    f"{C}.rollout_is": ("sequence", {}, {"sampler_correction.mode": "tis", "sampler_correction.level": "sequence"}),
    f"{C}.rollout_is_threshold": (3.0, {f"{C}.rollout_is": "token"}, {"sampler_correction.cap": 3.0}),
    f"{C}.rollout_rs": ("geometric", {}, {"sampler_correction.mode": "mask", "sampler_correction.level": "geometric"}),
    f"{C}.rollout_rs_threshold": (3.0, {f"{C}.rollout_rs": "token"}, {"sampler_correction.high": 3.0}),
    f"{C}.rollout_rs_threshold_lower": (0.1, {f"{C}.rollout_rs": "token"}, {"sampler_correction.low": 0.1}),
    f"{C}.bypass_mode": (True, {}, {"old_log_probs": "sampler"}),
    f"{C}.loss_type": ("reinforce", {f"{C}.bypass_mode": True}, {"policy_loss": "vanilla"}),
    f"{A}.tau_pos": (2.0, {f"{A}.policy_loss.loss_mode": "sapo"}, {"policy_loss_options": {"tau_positive": 2.0}}),
    f"{A}.tau_neg": (2.0, {f"{A}.policy_loss.loss_mode": "sapo"}, {"policy_loss_options": {"tau_negative": 2.0}}),
    f"{A}.ppo_micro_batch_size": (32, EIGHT, {f"{TRAIN}.per_device_train_batch_size": 4}),
    f"{A}.log_prob_micro_batch_size_per_gpu": (4, {}, {"actor_train.infer_batch_size": 4}),
    f"{A}.ulysses_sequence_parallel_size": (2, {}, {"actor_train.strategy_args.strategy_config.ulysses_size": 2}),
    f"{A}.use_remove_padding": (True, {}, {"actor_train.use_remove_padding": True}),
    "critic.ppo_micro_batch_size": (32, EIGHT, {"critic.training_args.per_device_train_batch_size": 4}),
    "critic.forward_micro_batch_size": (32, EIGHT, {"critic.infer_batch_size": 4}),
    "critic.loss_agg_mode": ("token-mean", {}, {"loss_agg_mode": "token-mean"}),
    "critic.ulysses_sequence_parallel_size": (2, {}, {"critic.strategy_args.strategy_config.ulysses_size": 2}),
    "critic.model.use_remove_padding": (True, {}, {"critic.use_remove_padding": True}),
    "critic.model.lora_rank": (8, {}, {"critic.model_args.lora_rank": 8}),
    "critic.model.lora_alpha": (16, {}, {"critic.model_args.lora_alpha": 16}),
    "critic.model.target_modules": (["q"], {}, {"critic.model_args.lora_target": ["q"]}),
    f"{M}.lora.rank": (8, {}, {"actor_train.model_args.lora_rank": 8}),
    f"{M}.lora.alpha": (16, {}, {"actor_train.model_args.lora_alpha": 16}),
    f"{M}.lora.target_modules": (["q"], {}, {"actor_train.model_args.lora_target": ["q"]}),
    f"{M}.custom_chat_template": ("chatml", {}, {"actor_train.data_args.template": "chatml"}),
    f"{F}.log_prob_micro_batch_size": (32, {**KL, **EIGHT}, {"reference.infer_batch_size": 4}),
    f"{F}.log_prob_max_token_len_per_gpu": (900, KL, {"reference.training_args.max_tokens_per_microbatch": 900}),
    f"{F}.ulysses_sequence_parallel_size": (2, KL, {"reference.strategy_args.strategy_config.ulysses_size": 2}),
    f"{F}.strategy": ("fsdp2", KL, {"reference.strategy_args.strategy_name": "fsdp_infer"}),
    f"{F}.model.path": ("M", KL, {"reference.model_args.model_name_or_path": "M"}),
    f"{R}.mode": ("sync", {}, {"generate_opt_level": 0}),
    f"{R}.repetition_penalty": (1.1, {}, {"actor_infer.generating_args.repetition_penalty": 1.1}),
    f"{R}.max_model_len": (8192, {f"{R}.name": "sglang"}, {ENGINE: {"context_length": 8192}}),
    f"{R}.enable_chunked_prefill": (
        False,
        {f"{R}.name": "vllm"},
        {ENGINE: {"enable_chunked_prefill": False}},
    ),
    f"{R}.enable_prefix_caching": (False, {f"{R}.name": "vllm"}, {ENGINE: {"enable_prefix_caching": False}}),
    f"{R}.engine_kwargs.vllm": ({"swap_space": 8, "seed": None}, {f"{R}.name": "vllm"}, {ENGINE: {"swap_space": 8}}),
    f"{R}.engine_kwargs.sglang": (
        {"attention_backend": "fa3"},
        {f"{R}.name": "sglang"},
        {ENGINE: {"attention_backend": "fa3"}},
    ),
    f"{R}.log_prob_micro_batch_size": (32, EIGHT, {"actor_train.infer_batch_size": 4}),
    f"{R}.update_weights_bucket_megabytes": (512, {}, {"weight_sync.bucket_mib": 512}),
    f"{R}.checkpoint_engine.update_weights_bucket_megabytes": (512, {}, {"weight_sync.bucket_mib": 512}),
    **{
        f"{R}.val_kwargs.{name}": (value, {"data.val_files": "v.parquet"}, {f"{VALIDATION}.{ours}": value})
        for name, ours, value in (
            ("top_k", "top_k", 20),
            ("top_p", "top_p", 0.7),
            ("n", "num_return_sequences", 4),
            ("repetition_penalty", "repetition_penalty", 1.1),
            ("temperature", "temperature", 0.6),
        )
    },
    f"{R}.val_kwargs.do_sample": (False, {"data.val_files": "v.parquet"}, {f"{VALIDATION}.temperature": 0.0}),
    "data.reward_fn_key": ("source", {}, {"actor_train.data_args.tag": "source"}),
    "data.train_max_samples": (50, {}, {"actor_train.data_args.max_samples": 50}),
    "data.val_max_samples": (
        50,
        {"data.val_files": "v.parquet"},
        {"validation.data_args.max_samples": 50},
    ),
    "data.seed": (7, {}, {"seed": 7}),
    "data.apply_chat_template_kwargs": (
        {"enable_thinking": False},
        {},
        {"actor_train.data_args.enable_thinking": False},
    ),
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable": (True, {}, {"overlong_buffer.enable": True}),
    "reward_model.reward_kwargs.overlong_buffer_cfg.len": (99, {}, {"overlong_buffer.len": 99}),
    "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor": (
        0.5,
        {},
        {"overlong_buffer.penalty_factor": 0.5},
    ),
    "reward_model.enable": (
        True,
        {},
        {"rewards.all.verifiers.reward_model.weight": 1.0, "reward.infer_batch_size": 8},
    ),
    "reward_model.model.path": ("V", REWARD, {"reward_pretrain": "V"}),
    "reward_model.model.use_remove_padding": (True, REWARD, {"reward.use_remove_padding": True}),
    "reward_model.micro_batch_size_per_gpu": (4, REWARD, {"reward.infer_batch_size": 4}),
    "reward_model.micro_batch_size": (32, {**REWARD, **EIGHT}, {"reward.infer_batch_size": 4}),
    "trainer.max_ckpt_to_keep": (5, {}, {"checkpoint_config.keep": 5}),
    "trainer.val_before_train": (False, {}, {"eval_at_start": False}),
}
