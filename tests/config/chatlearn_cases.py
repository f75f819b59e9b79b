"""What keys of ChatLearn set beyond its guide: how models are spread, what samples, and the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Case = tuple[Any, Mapping[str, Any], Mapping[str, Any]]
"""The value of the key, other keys beside it, and the native values that follow."""

T, F, P, M = "models.policy_trainer", "models.ref_policy", "models.policy", "models.rollout_manager"
R, LOG = "runtime_args", "runtime_args.log_args_dict"
TRAIN = "actor_train.training_args"
ENGINE = "actor_infer.strategy_args.strategy_config"
MEGATRON: Final = {"runtime_args.train_backend": "megatron"}
FSDP: Final = {"runtime_args.train_backend": "fsdp"}
VLLM: Final = {"runtime_args.rollout_backend": "vllm"}
REFERENCE: Final = {f"{F}.load": "R"}

_SIZES: Final = {
    "tensor_model_parallel_size": "tensor_model_parallel_size",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size",
    "expert_tensor_parallel_size": "expert_tensor_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}
_SWITCHES: Final = ("moe_router_force_load_balancing", "gradient_accumulation_fusion")


def _spread(section: str, role: str, beside: Mapping[str, Any]) -> dict[str, Case]:
    config = f"{role}.strategy_args.strategy_config"
    megatron, fsdp = {**MEGATRON, **beside}, {**FSDP, **beside}
    return {
        **{f"{section}.{key}": (2, megatron, {config: {name: 2}}) for key, name in _SIZES.items()},
        **{f"{section}.{key}": (True, megatron, {config: {key: True}}) for key in _SWITCHES},
        f"{section}.sequence_parallel": (
            True,
            {**megatron, f"{section}.tensor_model_parallel_size": 2},
            {f"{config}.sequence_parallel": True},
        ),
        f"{section}.virtual_pipeline_model_parallel_size": (
            2,
            {**megatron, f"{section}.pipeline_model_parallel_size": 2},
            {f"{config}.virtual_pipeline_model_parallel_size": 2},
        ),
        f"{section}.fsdp_size": (2, {**fsdp, f"{section}.num_gpu": 4}, {f"{config}.fsdp_size": 2}),
        f"{section}.ulysses_sequence_parallel_size": (2, fsdp, {config: {"ulysses_size": 2}}),
        f"{section}.use_expandable_segments": (
            True,
            beside,
            {f"{role}.system_envs": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        ),
        f"{section}.gpu_per_process": (2, beside, {f"{role}.num_gpus_per_worker": 2}),
    }


MORE: dict[str, Case] = {
    **_spread(T, "actor_train", {}),
    **_spread(F, "reference", REFERENCE),
    **{
        f"{T}.{key}": (value, MEGATRON, {"actor_train.strategy_args.strategy_config": {key: value}})
        for key, value in {
            "use_distributed_optimizer": False,
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 2,
        }.items()
    },
    f"{T}.recompute_modules": (
        ["core_attn"],
        {**MEGATRON, f"{T}.recompute_granularity": "selective"},
        {"actor_train.strategy_args.strategy_config.recompute_modules": ["core_attn"]},
    ),
    f"{T}.calculate_per_token_loss": (True, {}, {"loss_agg_mode": "token-mean"}),
    f"{T}.final_clip_ratio": (4.0, {}, {"dual_clip_loss": 4.0}),
    f"{T}.optimizer.min_lr": (1e-6, {f"{T}.optimizer.lr": 2e-6}, {f"{TRAIN}.min_lr_ratio": 0.5}),
    f"{T}.optimizer.adam_beta1": (0.8, {}, {f"{TRAIN}.adam_beta1": 0.8}),
    f"{T}.optimizer.adam_beta2": (0.95, {}, {f"{TRAIN}.adam_beta2": 0.95}),
    f"{T}.seed": (7, {}, {"seed": 7}),
    f"{T}.num_gpu": (
        16,
        {f"{R}.colocation": ["policy", "policy_trainer"]},
        {
            "num_gpus_per_node": 8,
            "cluster": "ray",
            "actor_train.device_mapping": list(range(16)),
            "actor_infer.device_mapping": list(range(16)),
        },
    ),
    f"{F}.packing": (True, REFERENCE, {"reference.use_sequence_packing": True}),
    f"{F}.max_token_in_packing": (
        9000,
        {**REFERENCE, f"{F}.packing": True},
        {"reference.training_args.max_tokens_per_microbatch": 9000},
    ),
    f"{P}.top_k": (20, {}, {"actor_infer.generating_args.top_k": 20}),
    f"{P}.repetition_penalty": (1.1, {}, {"actor_infer.generating_args.repetition_penalty": 1.1}),
    f"{P}.eval_repetition_penalty": (1.1, {}, {"val_generating.repetition_penalty": 1.1}),
    f"{P}.enforce_eager": (True, VLLM, {ENGINE: {"enforce_eager": True}}),
    f"{P}.max_num_batched_tokens": (9000, VLLM, {ENGINE: {"max_num_batched_tokens": 9000}}),
    f"{P}.seq_length": (700, {}, {"sequence_length": 700}),
    "models.reward.num_cpu": (
        6,
        {f"{R}.data_path": "d.jsonl", "models.reward.cpu_per_process": 2},
        {"rewards.math_rule.verifier_parallel": 3, "actor_train.data_args.file_name": ["d.jsonl"]},
    ),
    f"{M}.max_concurrent_per_engine": (64, {}, {"max_running_requests": 64}),
    f"{R}.num_inference_per_prompt": (16, {}, {"num_return_sequences_in_group": 16}),
    f"{R}.num_training_epoch": (2, {}, {"ppo_epochs": 2}),
    f"{R}.bucket_size_mb_in_memory_manager": (64, {}, {"weight_sync.bucket_mib": 64}),
    f"{R}.enable_eval_before_training": (False, {}, {"eval_at_start": False}),
    f"{R}.data_checkpoint_path": ("c", {}, {"resume_from_checkpoint": True}),
    f"{R}.enable_resume_training": (True, {f"{R}.data_checkpoint_path": "c"}, {"resume_from_checkpoint": True}),
    f"{LOG}.enable_tensorboard": (
        True,
        {f"{LOG}.enable_wandb": True},
        {"track_with": ["tensorboard", "wandb"]},
    ),
    f"{LOG}.tensorboard_dir": ("t", {}, {"tracker_kwargs": {"tensorboard": {"log_dir": "t"}}}),
    f"{T}.save_hf": (False, {}, {"checkpoint_config.hf_model": "never"}),
    **{
        f"{LOG}.wandb_{name}": ("x", {}, {"tracker_kwargs": {"wandb": {name: "x"}}})
        for name in ("project", "resume", "dir", "name", "id")
    },
}
"""By key."""
