"""ChatLearn: how FSDP and Megatron spread the policy and the reference."""

from __future__ import annotations

from dataclasses import dataclass
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

_RESUMED: Final = (
    "no_load_optim",
    "no_load_rng",
    "no_load_scheduler",
    "finetune",
    "use_checkpoint_opt_param_scheduler",
)
"""What of a checkpoint a run goes on with."""


@dataclass(frozen=True, slots=True)
class _Role:
    """A role that holds a model.

    Attributes:
        section: The guide's section of it.
        name: The native role.
    """

    section: str
    name: str

    @property
    def config(self) -> str:
        """The native section of the options of its strategy."""
        return f"{self.name}.strategy_args.strategy_config"

    def is_used(self, look: Look) -> bool:
        """Whether the run has such a model."""
        return self.name != "reference" or has_reference(look)

    def where_used(self, convert: Convert) -> Convert:
        """Return a conversion that counts where the run has such a model."""

        def converted(value: Any, look: Look) -> Any:
            return convert(value, look) if self.is_used(look) else Unused("there is no reference")

        return converted

    def held_by(self, engine: str, convert: Convert) -> Convert:
        """Return a conversion that counts where an engine holds the model."""

        def converted(value: Any, look: Look) -> Any:
            if trains_with_megatron(look) != (engine == "megatron"):
                return Unused("another strategy holds the model")
            return convert(value, look)

        return self.where_used(converted)

    def option(self, engine: str, name: str) -> Convert:
        """Return the conversion of an option of an engine, which names the engine too."""
        purpose = "train" if self.name == "actor_train" else "infer"

        def convert(value: Any, look: Look) -> Sets:
            named = {f"{self.name}.strategy_args.strategy_name": f"{engine}_{purpose}"}
            return Sets({f"{self.config}.{name}": value}, named)

        return self.held_by(engine, convert)


def _rows(section: str, name: str) -> tuple[Row, ...]:
    """Return the rows of how the model of a role is spread."""
    role = _Role(section, name)
    return (*_megatron(role), *_fsdp(role), *_of_either(role))


def _megatron(role: _Role) -> tuple[Row, ...]:
    section, config = role.section, role.config

    def sequence(value: Any, look: Look) -> Any:
        if value is True and look(f"{section}.tensor_model_parallel_size", 1) == 1:
            return Unused("one rank holds every matrix whole")
        return Sets({f"{config}.sequence_parallel": value})

    def interleaved(value: Any, look: Look) -> Any:
        if look(f"{section}.pipeline_model_parallel_size", 1) == 1:
            return Unused("there is no pipeline")
        return Sets({f"{config}.virtual_pipeline_model_parallel_size": value})

    def modules(value: Any, look: Look) -> Any:
        if look(f"{section}.recompute_granularity") != "selective":
            return Unused("recompute_granularity is not selective")
        return role.option("megatron", "recompute_modules")(value, look)

    def row(key: str, note: str, convert: Convert) -> Row:
        return Row(f"{section}.{key}", f"{config}.{_OF_MEGATRON.get(key, key)}", note, convert)

    is_trained = role.name == "actor_train"
    return (
        *([row("recompute_modules", "with `selective`", modules)] if is_trained else []),
        *(
            row(key, "where Megatron holds it", role.option("megatron", name))
            for key, name in _OF_MEGATRON.items()
            if is_trained or key not in _OF_TRAINING
        ),
        row("sequence_parallel", "above one rank", role.held_by("megatron", sequence)),
        row("virtual_pipeline_model_parallel_size", "of a pipeline", role.held_by("megatron", interleaved)),
    )


def _fsdp(role: _Role) -> tuple[Row, ...]:
    section, ulysses = role.section, role.option("fsdp", "ulysses_size")

    def fsdp_size(value: Any, look: Look) -> Any:
        # On all devices of a role it is what is so without it.
        return Unused() if value == look(f"{section}.num_gpu") else role.option("fsdp", "fsdp_size")(value, look)

    def row(key: str, name: str, convert: Convert) -> Row:
        return Row(f"{section}.{key}", f"{role.config}.{name}", "where FSDP holds it", convert)

    return (
        row("fsdp_size", "fsdp_size", role.held_by("fsdp", fsdp_size)),
        row("ulysses_sequence_parallel_size", "ulysses_size", ulysses),
    )


def _of_either(role: _Role) -> tuple[Row, ...]:
    """Return the rows of what is the same whoever holds the model."""
    section, name = role.section, role.name
    segments = role.where_used(lambda value, look: _segments(value, name))
    return (
        *impossible(
            "stages are of equal numbers of layers, but for the first and the last",
            f"{section}.pipeline_model_parallel_layout",
            instead="set decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers",
        ),
        *memory_rows(section, name),
        *no_effect("weights are read once, by the rank that has them", f"{section}.meta_init"),
        *no_effect("how experts are computed is the model's own, and changes no number", f"{section}.groupgemm"),
        Row(f"{section}.use_expandable_segments", f"{name}.system_envs", "`PYTORCH_CUDA_ALLOC_CONF`", segments),
        *no_effect(_ARCHITECTURE, *under(section, "megatron_model_cfg", "model_provider_module", *_SIZES)),
        *no_effect(
            "micro-batches of any length are sent between stages",
            *under(section, "variable_seq_lengths", "empty_unused_memory_level", "rerun_mode"),
        ),
        own_code_row(f"{section}.trust_remote_code"),
        *no_effect("a run that is resumed takes all of a checkpoint", *under(section, *_RESUMED)),
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
