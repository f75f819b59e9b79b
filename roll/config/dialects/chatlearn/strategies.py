"""ChatLearn: how FSDP and Megatron spread the policy and the reference."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.chatlearn.sections import REFERENCE, RUN, TRAINER, has_reference, trains_with_megatron
from roll.config.dialects.rows import (
    Convert,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    impossible,
    no_effect,
    own_code_row,
    under,
)
from roll.config.errors import FixableError

_OF_MEGATRON: Final = {
    "tensor_model_parallel_size": "tensor_model_parallel_size",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size",
    "expert_tensor_parallel_size": "expert_tensor_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "moe_router_force_load_balancing": "moe_router_force_load_balancing",
    "use_distributed_optimizer": "use_distributed_optimizer",
    "recompute_granularity": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_num_layers": "recompute_num_layers",
    "gradient_accumulation_fusion": "gradient_accumulation_fusion",
}
"""Options of Megatron in the guide and here."""

_OF_TRAINING: Final = ("use_distributed_optimizer", "recompute_granularity", "recompute_method", "recompute_num_layers")

_SIZES: Final = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups", "kv_channels"),
    *("max_position_embeddings", "swiglu", "normalization", "norm_epsilon", "position_embedding_type"),
    *("add_qkv_bias", "add_bias_linear", "rotary_base", "rotary_percent", "rotary_scaling_factor", "rope_type"),
    *("group_query_attention", "untie_embeddings_and_output_weights", "qk_layernorm", "vocab_size", "num_experts"),
    *("moe_router_topk", "moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_router_score_function", "moe_router_pre_softmax", "q_lora_rank", "kv_lora_rank", "multi_latent_attention"),
    *("v_head_dim", "apply_layernorm_1p", "is_hybrid_model", "hybrid_override_pattern"),
)
"""Sizes and parts of a model."""

_ARCHITECTURE: Final = "the architecture is that of the model's own config.json"


def _rows(section: str, role: str) -> tuple[Row, ...]:
    """Return the rows of how the model of a role is spread."""
    strategy = f"{role}.strategy_args"
    purpose = "train" if role == "actor_train" else "infer"

    def of(engine: str, convert: Convert) -> Convert:
        def converted(value: Any, look: Look) -> Any:
            if role == "reference" and not has_reference(look):
                return Unused("there is no reference")
            if trains_with_megatron(look) != (engine == "megatron"):
                return Unused("another strategy holds the model")
            return convert(value, look)

        return converted

    def of_role(convert: Convert) -> Convert:
        def converted(value: Any, look: Look) -> Any:
            used = role != "reference" or has_reference(look)
            return convert(value, look) if used else Unused("there is no reference")

        return converted

    def option(engine: str, name: str) -> Convert:
        def convert(value: Any, look: Look) -> Sets:
            named = {f"{strategy}.strategy_name": f"{engine}_{purpose}"}
            return Sets({f"{strategy}.strategy_config.{name}": value}, named)

        return of(engine, convert)

    def sequence(value: Any, look: Look) -> Any:
        if value is True and look(f"{section}.tensor_model_parallel_size", 1) == 1:
            return Unused("one rank holds every matrix whole")
        return Sets({f"{strategy}.strategy_config.sequence_parallel": value})

    def interleaved(value: Any, look: Look) -> Any:
        if look(f"{section}.pipeline_model_parallel_size", 1) == 1:
            return Unused("there is no pipeline")
        return Sets({f"{strategy}.strategy_config.virtual_pipeline_model_parallel_size": value})

    def fsdp_size(value: Any, look: Look) -> Any:
        # On all devices of a role it is what is so without it.
        return Unused() if value == look(f"{section}.num_gpu") else option("fsdp", "fsdp_size")(value, look)

    def modules(value: Any, look: Look) -> Any:
        if look(f"{section}.recompute_granularity") != "selective":
            return Unused("recompute_granularity is not selective")
        return option("megatron", "recompute_modules")(value, look)

    config = f"{strategy}.strategy_config"
    trained = Row(f"{section}.recompute_modules", f"{config}.recompute_modules", "with `selective`", modules)
    return (
        *([trained] if role == "actor_train" else []),
        *(
            Row(f"{section}.{key}", f"{config}.{name}", "where Megatron holds it", option("megatron", name))
            for key, name in _OF_MEGATRON.items()
            if role == "actor_train" or key not in _OF_TRAINING
        ),
        Row(f"{section}.sequence_parallel", f"{config}.sequence_parallel", "above one rank", of("megatron", sequence)),
        Row(
            f"{section}.virtual_pipeline_model_parallel_size",
            f"{config}.virtual_pipeline_model_parallel_size",
            "of a pipeline",
            of("megatron", interleaved),
        ),
        Row(f"{section}.fsdp_size", f"{config}.fsdp_size", "where FSDP holds it", of("fsdp", fsdp_size)),
        Row(
            f"{section}.ulysses_sequence_parallel_size",
            f"{config}.ulysses_size",
            "where FSDP holds it",
            option("fsdp", "ulysses_size"),
        ),
        *impossible(
            "stages are of equal numbers of layers, but for the first and the last",
            f"{section}.pipeline_model_parallel_layout",
            instead="set decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers",
        ),
        *memory_rows(section, role),
        *no_effect("weights are read once, by the rank that has them", f"{section}.meta_init"),
        *no_effect("how experts are computed is the model's own, and changes no number", f"{section}.groupgemm"),
        Row(
            f"{section}.use_expandable_segments",
            f"{role}.system_envs",
            "`PYTORCH_CUDA_ALLOC_CONF`",
            of_role(lambda value, look: _segments(value, role)),
        ),
        *no_effect(_ARCHITECTURE, f"{section}.megatron_model_cfg", f"{section}.model_provider_module"),
        *no_effect(_ARCHITECTURE, *under(section, *_SIZES)),
        *no_effect(
            "micro-batches of any length are sent between stages",
            f"{section}.variable_seq_lengths",
            f"{section}.empty_unused_memory_level",
            f"{section}.rerun_mode",
        ),
        own_code_row(f"{section}.trust_remote_code"),
        *no_effect(
            "a run that is resumed takes all of a checkpoint",
            *(f"{section}.{name}" for name in ("no_load_optim", "no_load_rng", "no_load_scheduler", "finetune")),
            f"{section}.use_checkpoint_opt_param_scheduler",
        ),
        *no_effect("rpc_timeout is that of all calls", f"{section}.distributed_timeout_minutes"),
    )


def memory_rows(section: str, role: str) -> tuple[Row, ...]:
    """Return the rows of what a model gives back while others have its devices."""

    def shares(value: Any, look: Look) -> bool:
        if not isinstance(value, bool):
            raise FixableError("must be true or false.", "write true or false.")
        # Models that take turns on devices always hand their memory over.
        return value and bool(look(f"{RUN}.colocation"))

    reason = "models that share devices hand their memory over to each other, and others keep it"
    return tuple(
        agreeing(f"{section}.free_gpu_memory.{name}", f"{role}.device_mapping", reason, shares)
        for name in ("offload_weights", "offload_optimizer_states", "free_grad_buffers")
    )


def _segments(value: Any, role: str) -> Any:
    if value is not True:
        return Unused()
    return Sets({f"{role}.system_envs.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


def _per_token(value: Any, look: Look) -> Any:
    if value is True:
        return Sets({"loss_agg_mode": "token-mean"})
    return Impossible("losses divide by the tokens of a batch", "set loss_agg_mode")


STRATEGY_ROWS: Final = (
    *_rows(TRAINER, "actor_train"),
    Row(f"{TRAINER}.calculate_per_token_loss", "loss_agg_mode", "true is `token-mean`", _per_token),
    *_rows(REFERENCE, "reference"),
    *no_effect(
        "a reference has no gradients", *(f"{REFERENCE}.{name}" for name in (*_OF_TRAINING, "recompute_modules"))
    ),
)
"""The options of FSDP and Megatron."""
