"""verl: ``actor_rollout_ref.model``: the policy, its adapters, and the reference beside it."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.model_config import OVERRIDES, config_overrides
from roll.config.dialects.rows import (
    Look,
    Row,
    Sets,
    Unused,
    dropped_if,
    impossible,
    negated,
    no_effect,
    own_code_row,
)
from roll.config.dialects.verl.sections import MODEL, REFERENCE, has_reference, per_device, trains_with_megatron

_ARGS: Final = "actor_train.model_args"
_NO_REFERENCE: Final = "no term uses the reference, or it is the policy without its adapters"
_SPEED: Final = "a matter of speed and memory that this version decides itself"


def _reference_used(value: Any, look: Look) -> Any:
    return value if has_reference(look) else Unused(_NO_REFERENCE)


def _reference_share(value: Any, look: Look) -> Any:
    return per_device(value, look) if has_reference(look) else _reference_used(value, look)


def _reference_spread(value: Any, look: Look) -> Any:
    if trains_with_megatron(look):
        return Unused("Megatron holds the model")
    if not has_reference(look):
        return Unused(_NO_REFERENCE)
    strategy = "reference.strategy_args"
    return Sets({f"{strategy}.strategy_config.ulysses_size": value}, {f"{strategy}.strategy_name": "fsdp_infer"})


def _reference_strategy(value: Any, look: Look) -> Any:
    names = {"fsdp": "fsdp_infer", "fsdp2": "fsdp_infer", "megatron": "megatron_infer"}
    return _reference_used(names.get(value, value) if isinstance(value, str) else value, look)


MODEL_ROWS: Final = (
    Row(f"{MODEL}.path", "pretrain"),
    Row(f"{MODEL}.enable_gradient_checkpointing", f"{_ARGS}.disable_gradient_checkpointing", "turned around", negated),
    Row(f"{MODEL}.use_remove_padding", "actor_train.use_remove_padding"),
    Row(f"{MODEL}.lora_rank", f"{_ARGS}.lora_rank", "0 is off", dropped_if((0,))),
    Row(f"{MODEL}.lora_alpha", f"{_ARGS}.lora_alpha"),
    Row(f"{MODEL}.target_modules", f"{_ARGS}.lora_target", "`all-linear` is the default", dropped_if(("all-linear",))),
    Row(f"{MODEL}.lora.rank", f"{_ARGS}.lora_rank", "0 is off", dropped_if((0,))),
    Row(f"{MODEL}.lora.alpha", f"{_ARGS}.lora_alpha"),
    Row(f"{MODEL}.lora.target_modules", f"{_ARGS}.lora_target", "a list of modules"),
    *impossible(
        "training begins with new adapters",
        f"{MODEL}.lora_adapter_path",
        f"{MODEL}.lora.adapter_path",
        instead="merge the adapter into the weights, and name those in pretrain",
    ),
    *impossible(
        "adapters leave out no module by its name",
        f"{MODEL}.exclude_modules",
        f"{MODEL}.lora.exclude_modules",
        f"{MODEL}.target_parameters",
        instead="list the modules that get adapters in actor_train.model_args.lora_target",
    ),
    *no_effect(
        "adapters begin and are placed as the trainer does it",
        f"{MODEL}.lora.type",
        f"{MODEL}.lora.merge",
        f"{MODEL}.lora.lora_A_init_method",
        f"{MODEL}.lora.lora_B_init_method",
        f"{MODEL}.lora.dropout_position",
        f"{MODEL}.lora.a2a_experimental",
        f"{MODEL}.lora.dtype",
        f"{MODEL}.lora.freeze_vision_model",
        f"{MODEL}.lora.freeze_vision_projection",
        f"{MODEL}.lora.freeze_language_model",
    ),
    *impossible("adapters drop no values", f"{MODEL}.lora.dropout", instead="leave it out"),
    Row(f"{MODEL}.custom_chat_template", "actor_train.data_args.template"),
    Row(
        f"{MODEL}.override_config",
        tuple(f"{_ARGS}.{name}" for name in OVERRIDES),
        "nothing else of a config.json can be changed",
        config_overrides("actor_train"),
    ),
    Row(f"{MODEL}.external_lib", note="Name modules of your own in algorithm_modules.", only=(None,)),
    *no_effect("the tokenizer and config.json are those beside the weights", f"{MODEL}.tokenizer_path"),
    *no_effect("the tokenizer and config.json are those beside the weights", f"{MODEL}.hf_config_path"),
    own_code_row(f"{MODEL}.trust_remote_code"),
    *no_effect("weights are read where they lie", f"{MODEL}.use_shm"),
    *no_effect("kernels are the strategy's", f"{MODEL}.use_fused_kernels", f"{MODEL}.fused_kernel_options"),
    *no_effect("kernels are the strategy's", f"{MODEL}.use_liger", f"{MODEL}.tiled_mlp"),
    *no_effect("activations are computed again instead", f"{MODEL}.enable_activation_offload"),
    *no_effect("tokens that are foretold in passing are no part of the loss", f"{MODEL}.mtp"),
    *no_effect("actor and sampler always share their devices here", "actor_rollout_ref.hybrid_engine"),
    *no_effect("`rpc_timeout` limits calls to other processes", "actor_rollout_ref.nccl_timeout"),
    *no_effect("explorers are named by experience.writer", "actor_rollout_ref.explorer_name"),
    *no_effect("the class of a model follows from its config.json", f"{MODEL}.model_type"),
)
"""The keys of the policy's model."""

REFERENCE_ROWS: Final = (
    Row(
        f"{REFERENCE}.log_prob_micro_batch_size_per_gpu",
        "reference.infer_batch_size",
        "where a divergence is used",
        _reference_used,
    ),
    Row(f"{REFERENCE}.log_prob_micro_batch_size", "reference.infer_batch_size", "over all devices", _reference_share),
    Row(
        f"{REFERENCE}.log_prob_max_token_len_per_gpu",
        "reference.training_args.max_tokens_per_microbatch",
        "where a divergence is used",
        _reference_used,
    ),
    Row(
        f"{REFERENCE}.ulysses_sequence_parallel_size",
        "reference.strategy_args.strategy_config.ulysses_size",
        "of FSDP",
        _reference_spread,
    ),
    Row(
        f"{REFERENCE}.strategy", "reference.strategy_args.strategy_name", "`fsdp` is `fsdp_infer`", _reference_strategy
    ),
    Row(f"{REFERENCE}.model.path", "reference.model_args.model_name_or_path", "", _reference_used),
    *no_effect(
        "`max_tokens_per_microbatch`, where it is set, limits the batches that are scored",
        f"{REFERENCE}.log_prob_use_dynamic_bsz",
    ),
    *no_effect(
        _SPEED,
        f"{REFERENCE}.use_torch_compile",
        f"{REFERENCE}.entropy_from_logits_with_chunking",
        f"{REFERENCE}.entropy_checkpointing",
        f"{REFERENCE}.use_prefix_grouper",
    ),
    *no_effect("the reference has the sampler's responses as the policy has", f"{REFERENCE}.rollout_n"),
    *no_effect("no profile is written of single steps", f"{REFERENCE}.profiler"),
    *no_effect("the routes of experts are not replayed", f"{REFERENCE}.router_replay"),
    Row(f"{REFERENCE}.load_weight", note="A reference begins as the policy.", only=(True,), agrees="reference"),
    *no_effect("a reference does not change, so it is in no checkpoint", f"{REFERENCE}.checkpoint"),
    *no_effect("no profile is written of single steps", f"{REFERENCE}.profile"),
)
"""The keys of the reference."""
