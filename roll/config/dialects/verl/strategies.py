"""verl: how FSDP and Megatron spread the models of the roles, `fsdp_config` and `megatron`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, no_effect, under
from roll.config.dialects.verl.sections import (
    ACTOR,
    CRITIC,
    DTYPES,
    REFERENCE,
    REWARD,
    has_reference,
    has_reward_model,
    trains_with_megatron,
)

Outcome = Any
_Option = Callable[[Any, Look], Outcome]
"""From the value of an option to that of ours, or to what a row's conversion may return."""


@dataclass(frozen=True, slots=True)
class _Role:
    """A role that holds a model.

    Attributes:
        name: The native role.
        fsdp: The guide's section of its FSDP options.
        megatron: The guide's section of its Megatron options.
        purpose: What its strategies end with: ``train`` or ``infer``.
        used: Whether the run has such a model.
    """

    name: str
    fsdp: str
    megatron: str
    purpose: str
    used: Callable[[Look], bool]

    def sets(self, engine: str, option: str, value: Any) -> Sets:
        """Return the native keys of one option of its strategy."""
        strategy = f"{self.name}.strategy_args"
        name = {f"{strategy}.strategy_name": f"{engine}_{self.purpose}"}
        return Sets({f"{strategy}.strategy_config.{option}": value}, name)


_ROLES: Final = (
    _Role("actor_train", f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron", "train", lambda look: True),
    _Role("reference", f"{REFERENCE}.fsdp_config", f"{REFERENCE}.megatron", "infer", has_reference),
    _Role("critic", f"{CRITIC}.model.fsdp_config", f"{CRITIC}.megatron", "train", lambda look: True),
    _Role("reward", f"{REWARD}.model.fsdp_config", f"{REWARD}.megatron", "infer", has_reward_model),
)


def _row(role: _Role, engine: str, key: str, option: str, convert: _Option | None = None, note: str = "") -> Row:
    """Return the row of one option of an engine, which counts where the role has a model that this engine holds."""
    target = f"{role.name}.strategy_args.strategy_config.{option}"

    def converted(value: Any, look: Look) -> Outcome:
        if not role.used(look):
            return Unused(f"the run has no {role.name}")
        if trains_with_megatron(look) != (engine == "megatron"):
            return Unused("another strategy holds the model")
        outcome = value if convert is None else convert(value, look)
        return outcome if isinstance(outcome, Sets | Unused | Impossible) else role.sets(engine, option, outcome)

    return Row(key, target, note or f"where {'Megatron' if engine == 'megatron' else 'FSDP'} holds it", converted)


def _weights_of(section: str) -> _Option:
    """Convert the checkpoint that a model begins with, which counts where it is switched on."""

    def convert(value: Any, look: Look) -> Outcome:
        used = look(f"{section}.use_dist_checkpointing") is True
        return value if used else Unused(f"{section}.use_dist_checkpointing is not true")

    return convert


def _prefix(value: Any, look: Look) -> Outcome:
    """Convert what stands before the names of weights in a checkpoint: nothing does, in Megatron-Core's own."""
    if value == "":
        return Unused()
    return Impossible("weights are found under Megatron-Core's own names", "write the checkpoint without a prefix")


def _offloads(role: _Role) -> _Option:
    """Convert one of the two switches that move a model to main memory: here there is one for both."""

    def convert(value: Any, look: Look) -> Outcome:
        both = [look(f"{role.fsdp}.{name}", False) for name in ("param_offload", "optimizer_offload")]
        if role.purpose == "infer" or both[0] == both[1] or not all(isinstance(one, bool) for one in both):
            return value
        note = "weights, gradients and optimiser states are kept in main memory together"
        return replace(role.sets("fsdp", "offload_params", True), note=note)

    return convert


def _fsdp(role: _Role) -> tuple[Row, ...]:
    section = role.fsdp

    def option(key: str, name: str, convert: _Option | None = None, note: str = "") -> Row:
        return _row(role, "fsdp", f"{section}.{key}", name, convert, note)

    def format_of(value: Any, look: Look) -> Outcome:
        return DTYPES.get(value, value) if isinstance(value, str) else value

    return (
        option("param_offload", "offload_params", _offloads(role), "one switch for weights and optimiser"),
        option("optimizer_offload", "offload_params", _offloads(role), "one switch for weights and optimiser"),
        option("offload_policy", "offload_params"),
        option("reshard_after_forward", "reshard_after_forward"),
        option("fsdp_size", "fsdp_size"),
        option("ulysses_sequence_parallel_size", "ulysses_size"),
        option("mixed_precision.reduce_dtype", "reduce_dtype", format_of),
        Row(f"{section}.model_dtype", f"{role.name}.model_args.dtype", "of the weights", _if_used(role)),
        Row(f"{section}.dtype", f"{role.name}.model_args.dtype", "of the weights", _if_used(role)),
        *no_effect(
            "`model_args.dtype` says in which format a model computes",
            f"{section}.mixed_precision.param_dtype",
            f"{section}.mixed_precision.buffer_dtype",
        ),
        *no_effect(
            "every layer of a model is wrapped, and gathered ahead of its use",
            f"{section}.wrap_policy",
            f"{section}.min_num_params",
            f"{section}.forward_prefetch",
            f"{section}.use_orig_params",
            f"{section}.model_config",
        ),
        *no_effect("the trainer is that of the role, `strategy_args.strategy_name`", f"{section}.strategy"),
        *no_effect("what a role does follows from its name", f"{section}.forward_only"),
        *no_effect("`seed` and `deterministic` hold for the whole run", f"{section}.seed"),
        *no_effect("`seed` and `deterministic` hold for the whole run", f"{section}.full_determinism"),
        *no_effect(
            "a matter of speed and memory that this version decides itself",
            f"{section}.entropy_from_logits_with_chunking",
            f"{section}.entropy_checkpointing",
            f"{section}.use_torch_compile",
        ),
    )


def _if_used(role: _Role) -> _Option:
    def convert(value: Any, look: Look) -> Outcome:
        if not role.used(look):
            return Unused(f"the run has no {role.name}")
        return DTYPES.get(value, value) if isinstance(value, str) else value

    return convert


_SIZES: Final = (
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)

_AS_THEY_ARE: Final = {
    "override_transformer_config": (
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "recompute_granularity",
        "moe_token_dispatcher_type",
        "moe_grouped_gemm",
        "moe_router_dtype",
        "moe_permute_fusion",
        "moe_shared_expert_overlap",
        "moe_router_force_load_balancing",
        "attention_backend",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "apply_rope_fusion",
        "gradient_accumulation_fusion",
    ),
    "override_ddp_config": (
        "use_distributed_optimizer",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "grad_reduce_in_fp32",
    ),
}
"""Options of Megatron that are ours under the same name, by section."""


_ARCHITECTURE: Final = (
    "moe_aux_loss_coeff",
    "moe_z_loss_coeff",
    "moe_router_load_balancing_type",
    "moe_router_bias_update_rate",
    "moe_router_enable_expert_bias",
    "moe_router_score_function",
    "moe_router_topk",
    "use_flash_attn",
    "add_qkv_bias",
    "qk_layernorm",
    "rotary_base",
)
"""Options of the transformer that say what a model computes."""

_KERNELS: Final = (
    "persist_layer_norm",
    "masked_softmax_fusion",
    "deallocate_pipeline_outputs",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "moe_enable_deepep",
    "moe_flex_dispatcher_backend",
    "cross_entropy_loss_fusion",
    "cross_entropy_fusion_impl",
    "memory_efficient_layer_norm",
    "use_fused_rmsnorm",
    "use_fused_swiglu",
    "use_fused_rotary_pos_emb",
    "use_distributed_optimizer",
    "swap_optimizer",
    "overlap_p2p_comm",
    "batch_p2p_comm",
    "variable_seq_lengths",
    "sequence_parallel",
    "tp_comm_overlap",
)
"""Options of the transformer that say how it is computed."""

_FILES: Final = (
    "use_mbridge",
    "vanilla_mbridge",
    "use_megatron_fsdp",
    "load_weight",
    "override_mcore_model_config",
)
"""Options that say how weights are read and written."""


def _size(role: _Role, name: str) -> _Option:
    """Convert over how many ranks a model is spread."""

    def convert(value: Any, look: Look) -> Outcome:
        own = role.sets("megatron", name, value)
        if role.name != "actor_train" or not has_reference(look):
            return own
        # The reference is spread as the policy is, unless its own section says otherwise.
        reference = _ROLES[1].sets("megatron", name, value)
        return replace(own, fills={**own.fills, **reference.values, **reference.fills})

    return convert


def _tensor(role: _Role) -> _Option:
    """Convert over how many ranks a matrix is spread: above one, sequences are spread with it if nothing says not."""

    def convert(value: Any, look: Look) -> Outcome:
        sets = _size(role, "tensor_model_parallel_size")(value, look)
        several = isinstance(value, int) and value > 1 and look(f"{role.megatron}.sequence_parallel", True) is True
        if not several:
            return sets
        config = "strategy_args.strategy_config.sequence_parallel"
        roles = [
            path.split(".")[0] for path in {**sets.values, **sets.fills} if path.endswith("tensor_model_parallel_size")
        ]
        return replace(sets, fills={**sets.fills, **{f"{name}.{config}": True for name in roles}})

    return convert


def _megatron(role: _Role) -> tuple[Row, ...]:
    section = role.megatron
    granularity = f"{section}.override_transformer_config.recompute_granularity"

    def option(key: str, name: str, convert: _Option | None = None, note: str = "") -> Row:
        return _row(role, "megatron", f"{section}.{key}", name, convert, note)

    def sequence(value: Any, look: Look) -> Outcome:
        alone = look(f"{section}.tensor_model_parallel_size", 1) == 1
        return Unused("one rank holds every matrix whole") if value is True and alone else value

    def interleaved(value: Any, look: Look) -> Outcome:
        return Unused() if look(f"{section}.pipeline_model_parallel_size", 1) == 1 else value

    def with_(wanted: str) -> _Option:
        return lambda value, look: (
            value if look(granularity) == wanted else Unused(f"recompute_granularity is not {wanted}")
        )

    return (
        option(
            "tensor_model_parallel_size",
            "tensor_model_parallel_size",
            _tensor(role),
            "with `sequence_parallel` above 1",
        ),
        *(option(name, name, _size(role, name)) for name in _SIZES),
        option("virtual_pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", interleaved),
        option("sequence_parallel", "sequence_parallel", sequence, "above one tensor-parallel rank"),
        option("use_distributed_optimizer", "use_distributed_optimizer"),
        *(option(f"{inner}.{name}", name) for inner, names in _AS_THEY_ARE.items() for name in names),
        option("override_transformer_config.recompute_method", "recompute_method", with_("full")),
        option("override_transformer_config.recompute_num_layers", "recompute_num_layers", with_("full")),
        option("override_transformer_config.recompute_modules", "recompute_modules", with_("selective")),
        option("override_ddp_config.bucket_size", "ddp_bucket_size"),
        Row(f"{section}.dtype", f"{role.name}.model_args.dtype", "of the weights", _if_used(role)),
        Row(f"{section}.use_remove_padding", f"{role.name}.use_sequence_packing", "", _if_used(role)),
        option("dist_checkpointing_path", "load", _weights_of(section)),
        Row(
            f"{section}.dist_checkpointing_prefix",
            note="an empty one",
            convert=_prefix,
            agrees=f"{role.name}.strategy_args.strategy_config.load",
        ),
    )


def _megatron_without_effect(role: _Role) -> tuple[Row, ...]:
    section = role.megatron
    transformer, parallel = f"{section}.override_transformer_config", f"{section}.override_ddp_config"
    return (
        *no_effect(
            "models that share devices hand their memory over to each other",
            *under(section, "param_offload", "grad_offload", "optimizer_offload"),
        ),
        *no_effect("`dist_checkpointing_path` says it", f"{section}.use_dist_checkpointing"),
        *no_effect("weights are read from and written to the files of the model hub", *under(section, *_FILES)),
        *no_effect("`seed` and `deterministic` hold for the whole run", f"{section}.seed"),
        *no_effect("what a role does follows from its name", f"{section}.forward_only"),
        *no_effect("no profile is written of single steps", f"{section}.extra", f"{section}.profile"),
        *no_effect(
            "the gradients of a layer travel in buckets of `ddp_bucket_size`", f"{parallel}.average_in_collective"
        ),
        *no_effect(
            "the architecture and its losses are those of the model's own config.json",
            *under(transformer, *_ARCHITECTURE),
        ),
        *no_effect(
            "a kernel or a layout of memory that changes no number, which this version decides itself",
            *under(transformer, *_KERNELS),
        ),
    )


STRATEGY_ROWS: Final = tuple(
    row for role in _ROLES for row in (*_fsdp(role), *_megatron(role), *_megatron_without_effect(role))
)
"""The options of FSDP and Megatron of every role."""
