"""ChatLearn: ``runtime_args`` and ``models.policy_trainer``, ``ref_policy``, ``policy``, ``reward``."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.engines import engine_at, option_rows, size_row
from roll.config.dialects.rows import (
    GENERATION_STRATEGIES,
    TRAIN_STRATEGIES,
    Guide,
    Look,
    Row,
    Sets,
    Unused,
    above_zero,
    choices,
    negated,
    no_effect,
    plain,
    share,
    whole,
)
from roll.config.errors import FixableError

_TRAINER = "models.policy_trainer"
_REF = "models.ref_policy"
_POLICY = "models.policy"
_RUN = "runtime_args"
_RESPONSES = f"{_POLICY}.num_inference_per_prompt"

_NUMBERS = choices({True: "bf16", False: "fp32"})

_SHARDING = "sharding and memory belong to the strategy, `strategy_args.strategy_config`"
_DEVICES = "devices belong to the role, `device_mapping`"
_engine = engine_at(f"{_RUN}.rollout_backend")
_MEGATRON = "options of Megatron go to `actor_train.strategy_args.strategy_config`"


def _kl_coef(value: Any, look: Look) -> Any:
    # Above 0 it turns the term on, as the guide says; its estimate is k3.
    if value == 0:
        return Sets({"kl_loss_coef": value})
    return Sets({"use_kl_loss": True, "kl_loss_coef": value}, {"kl_penalty": "low_var_kl"})


def _gspo(value: Any, look: Look) -> Any:
    if not isinstance(value, bool):
        raise FixableError("must be true or false.", "write true or false.")
    return "gspo" if value else Unused()


def _budget(value: Any, look: Look) -> Any:
    return value if look(f"{_TRAINER}.packing") is True else Unused(f"{_TRAINER}.packing is not true")


def _packing(value: Any, look: Look) -> Any:
    if value is True and look(f"{_TRAINER}.max_token_in_packing") is None:
        raise FixableError("packing needs a token budget.", f"set {_TRAINER}.max_token_in_packing.")
    return value


def _reference(value: Any, look: Look) -> Any:
    used = above_zero(look(f"{_TRAINER}.kl_coef")) or look.kl_loss or look.kl_reward
    return value if used else Unused("no term uses the reference")


def _samples(look: Look) -> int:
    if look(f"{_RUN}.sample_per_episode") is not None:
        return whole(look(f"{_RUN}.sample_per_episode"), f"{_RUN}.sample_per_episode")
    return look.prompts("", _RESPONSES) * look.responses(_RESPONSES)


def _episode(value: Any, look: Look) -> int:
    samples = whole(value, "the number of samples")
    return samples if look.agentic else share(samples, look.responses(_RESPONSES), "samples")


def _mini_batches(value: Any, look: Look) -> int:
    return share(_samples(look), value, "samples")


def _wandb(value: Any, look: Look) -> Any:
    return "wandb" if value is True else Unused()


_LOSS = (
    Row(f"{_TRAINER}.pos_clip_ratio", "pg_clip_high"),
    Row(f"{_TRAINER}.neg_clip_ratio", "pg_clip_low"),
    Row(f"{_TRAINER}.entropy_coef", "entropy_loss_coef"),
    Row(
        f"{_TRAINER}.kl_coef",
        ("kl_loss_coef", "use_kl_loss"),
        "above 0 turns `use_kl_loss` on, with `kl_penalty: low_var_kl` unless it is set, and with a reference",
        _kl_coef,
    ),
    Row(f"{_TRAINER}.use_group_sequence_policy", "policy_loss", "true is `gspo`", _gspo),
)

_RUNTIME = (
    Row(
        f"{_RUN}.train_backend",
        "actor_train.strategy_args.strategy_name",
        "`fsdp`, `megatron`",
        choices(TRAIN_STRATEGIES),
    ),
    Row(
        f"{_RUN}.rollout_backend",
        "actor_infer.strategy_args.strategy_name",
        "`vllm`, `sglang`",
        choices(GENERATION_STRATEGIES),
    ),
    *plain(
        _RUN,
        "",
        exp_name="exp_name",
        output_dir="output_dir",
        data_path="actor_train.data_args.file_name",
        eval_data_path="validation.data_args.file_name",
        num_episode="max_steps",
        save_episode_interval="save_steps",
        eval_episode_interval="eval_steps",
        data_shuffle="actor_train.data_args.shuffle",
    ),
    Row(f"{_RUN}.sample_per_episode", "rollout_batch_size", "in prompts (RLVR) or trajectories (agentic)", _episode),
    Row(
        f"{_RUN}.train_global_batch_size",
        "mini_batches",
        "`sample_per_episode` divided by it; both count samples",
        _mini_batches,
    ),
    Row(f"{_RUN}.train_micro_batch_size", "actor_train.training_args.per_device_train_batch_size"),
    Row(f"{_RUN}.log_args_dict.enable_wandb", "track_with", "true is `wandb`", _wandb),
    Row(f"{_RUN}.log_args_dict.log_dir", "logging_dir"),
    *no_effect(
        "options of a tracker go to `tracker_kwargs`",
        *(f"{_RUN}.log_args_dict.wandb_{name}" for name in ("project", "dir", "name", "id", "resume")),
    ),
    *no_effect(_DEVICES, f"{_RUN}.colocation", f"{_RUN}.data_rerank"),
    *no_effect("prompts follow from `seed` and step, so their place needs no file", f"{_RUN}.data_checkpoint_path"),
    *no_effect("evaluations follow `eval_steps`", f"{_RUN}.enable_eval_before_training"),
)

_TRAINING = (
    Row(f"{_TRAINER}.optimizer.lr", "actor_train.training_args.learning_rate"),
    Row(f"{_TRAINER}.optimizer.clip_grad", "max_grad_norm"),
    Row(f"{_TRAINER}.optimizer.weight_decay", "actor_train.training_args.weight_decay"),
    Row(f"{_TRAINER}.generation_batch_size", "actor_train.infer_batch_size"),
    Row(f"{_TRAINER}.train_micro_batch_size", "actor_train.training_args.per_device_train_batch_size"),
    Row(
        f"{_TRAINER}.packing",
        "actor_train.use_sequence_packing",
        "needs `max_token_in_packing`",
        _packing,
    ),
    Row(
        f"{_TRAINER}.max_token_in_packing",
        "actor_train.training_args.max_tokens_per_microbatch",
        "where `packing` is true",
        _budget,
    ),
    Row(f"{_TRAINER}.load", "pretrain"),
    Row(f"{_TRAINER}.max_prompt_tokens_length", "prompt_length"),
    Row(f"{_TRAINER}.max_response_tokens_length", "response_length"),
    Row(
        f"{_TRAINER}.seq_length",
        "sequence_length",
        "the guide's sum counts the prompt twice; here it is prompt + response",
    ),
    Row(
        f"{_TRAINER}.gradient_checkpointing",
        "actor_train.model_args.disable_gradient_checkpointing",
        "turned around",
        negated,
    ),
    Row(f"{_TRAINER}.bf16", "actor_train.model_args.dtype", "true is `bf16`", _NUMBERS),
    Row(f"{_TRAINER}.trainable", note="The policy is what is trained.", only=(True,)),
    *no_effect(_DEVICES, f"{_TRAINER}.gpu_per_process", f"{_TRAINER}.num_gpu"),
    *no_effect(
        _SHARDING,
        *(
            f"{_TRAINER}.{name}"
            for name in ("free_gpu_memory", "fsdp_size", "ulysses_sequence_parallel_size", "meta_init", "groupgemm")
        ),
    ),
    *no_effect("every checkpoint has the Hugging Face format too", f"{_TRAINER}.save_hf"),
)

_MEGATRON_KEYS = (
    "tokenizer_type",
    "tokenizer_model",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_tensor_parallel_size",
    "expert_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "moe_router_force_load_balancing",
    "sequence_parallel",
    "use_distributed_optimizer",
    "recompute_granularity",
)

_REFERENCE = (
    Row(f"{_REF}.generation_batch_size", "reference.infer_batch_size", "where `kl_coef` is above 0", _reference),
    Row(f"{_REF}.load", "reference.model_args.model_name_or_path", "where `kl_coef` is above 0", _reference),
    Row(
        f"{_REF}.bf16",
        "reference.model_args.dtype",
        "where `kl_coef` is above 0",
        lambda value, look: _reference(_NUMBERS(value, look), look),
    ),
    Row(f"{_REF}.trainable", note="A reference is frozen.", only=(False,)),
    *no_effect(
        "batches are scored by `infer_batch_size`",
        *(f"{_REF}.{name}" for name in ("packing", "max_token_in_packing", "seq_length")),
    ),
    *no_effect(_DEVICES, f"{_REF}.gpu_per_process", f"{_REF}.num_gpu"),
    *no_effect(_SHARDING, *(f"{_REF}.{name}" for name in ("free_gpu_memory", "fsdp_size", "meta_init", "groupgemm"))),
)

_SAMPLER = (
    Row(_RESPONSES, "num_return_sequences_in_group", "agentic: `train_env_manager.group_size`"),
    Row(f"{_POLICY}.max_prompt_tokens_length", "prompt_length"),
    Row(f"{_POLICY}.max_response_tokens_length", ("response_length", "actor_infer.generating_args.max_new_tokens")),
    *plain(_POLICY, "actor_infer.generating_args", temperature="temperature", top_p="top_p"),
    *plain(_POLICY, "val_generating_args", eval_temperature="temperature", eval_top_p="top_p", eval_top_k="top_k"),
    Row(f"{_POLICY}.load", "pretrain", "the sampler has the weights of the policy"),
    Row(f"{_POLICY}.generation_batch_size", "max_running_requests"),
    *option_rows(_POLICY, _engine, "gpu_memory_utilization"),
    size_row(f"{_POLICY}.tensor_model_parallel_size", _engine),
    Row(f"{_POLICY}.trainable", note="The sampler takes its weights from policy_trainer.", only=(False,)),
    Row(f"{_POLICY}.enable_thinking", "actor_train.data_args.enable_thinking"),
    *no_effect(_DEVICES, f"{_POLICY}.gpu_per_process", f"{_POLICY}.num_gpu"),
    *no_effect(_SHARDING, f"{_POLICY}.free_gpu_memory"),
    *no_effect(
        "graders run `verifier_parallel` at a time",
        *(f"models.reward.{name}" for name in ("num_cpu", "cpu_per_process", "generation_batch_size")),
    ),
)

CHATLEARN: Final = Guide(
    "ChatLearn",
    (
        *_LOSS,
        *_RUNTIME,
        *_TRAINING,
        *no_effect(_MEGATRON, *(f"{_TRAINER}.{name}" for name in _MEGATRON_KEYS)),
        *_REFERENCE,
        *no_effect(_MEGATRON, *(f"{_REF}.{name}" for name in _MEGATRON_KEYS)),
        *_SAMPLER,
    ),
    short={
        "policy_trainer": _TRAINER,
        "ref_policy": _REF,
        "policy": _POLICY,
        **{row.key.rpartition(".")[2]: row.key for row in _LOSS},
    },
)
"""The ChatLearn configuration guide; a model's section may stand alone, and so may the keys of the loss."""
