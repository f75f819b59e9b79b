"""ROLL's options of engines and trainers, by the strategy that they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.config.dialects.rows import Look, Row, Unused, impossible, no_effect, under, unless

_NUMBERS: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "torch.bfloat16": "bf16", "bf16": "bf16"}
_STRATEGIES: Final = {"fsdp2_train": "fsdp_train", "fsdp2_infer": "fsdp_infer"}


def _named(names: dict[str, str]) -> Callable[[Any, Look], Any]:
    return lambda value, look: names.get(value, value) if isinstance(value, str) else value


_EXPERTS: Final = "experts are spread like all other weights with fsdp_train"
_MEGATRON: Final = "megatron_train with expert_model_parallel_size"
_TILES: Final = "MLPs are not computed in tiles"
_SMALLER: Final = "training_args.max_tokens_per_microbatch limits the tokens of a pass"


@dataclass(frozen=True, slots=True)
class _Paths:
    """Where the options of a strategy are.

    Attributes:
        options: Their section as ROLL writes it.
        ours: Their section here.
        dtype: The native key of the number format of the model.
    """

    options: str
    ours: str
    dtype: str

    def option(self, look: Look, name: str) -> Any:
        """Return the value of an option, in whichever spelling it is set."""
        found = look(f"{self.options}.{name}")
        return look.native(f"{self.ours}.{name}") if found is None else found

    def under(self, *names: str) -> tuple[str, ...]:
        """Return the paths of options as ROLL writes them."""
        return under(self.options, *names)


def strategy_rows(role: str, native: str) -> tuple[Row, ...]:
    """Return the rows of the engine or trainer of a role.

    Args:
        role: Its path as ROLL writes it.
        native: Its path here.
    """
    options, ours = f"{role}.strategy_args.strategy_config", f"{native}.strategy_args.strategy_config"
    paths = _Paths(options, ours, f"{native}.model_args.dtype")
    return (
        Row(f"{role}.strategy_args.strategy_name", f"{native}.strategy_args.strategy_name", "", _named(_STRATEGIES)),
        *_megatron(paths),
        *_megatron_limits(paths),
        *_fsdp(paths),
        *_engines(paths),
    )


def _megatron(paths: _Paths) -> tuple[Row, ...]:
    options, ours, dtype = paths.options, paths.ours, paths.dtype

    def in_bf16(value: Any, look: Look) -> Any:
        if isinstance(value, Mapping):
            return value  # a section of DeepSpeed's options
        if value is not True or look.native(dtype) not in (None, "bf16"):
            return Unused("model_args.dtype says it")
        return "bf16"

    def spread(value: Any, look: Look) -> Any:
        alone = paths.option(look, "tensor_model_parallel_size") in (None, 1)
        return Unused("tensor_model_parallel_size is 1, so there is nothing to spread") if value and alone else value

    def parts(value: Any, look: Look) -> Any:
        if paths.option(look, "recompute_granularity") == "full":
            return Unused("whole layers are computed again with recompute_granularity: full")
        return value

    def modules(value: Any, look: Look) -> Any:
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")]
        return parts(value, look)

    return (
        Row(f"{options}.bf16", dtype, "true is bf16", in_bf16),
        Row(f"{options}.sequence_parallel", f"{ours}.sequence_parallel", "with tensor parallelism", spread),
        Row(f"{options}.moe_layer_recompute", f"{ours}.moe_layer_recompute", "with `selective`", parts),
        Row(f"{options}.recompute_modules", f"{ours}.recompute_modules", "with `selective`", modules),
        Row(f"{options}.max_grad_norm", "max_grad_norm"),
        *(
            Row(f"{options}.additional_configs.{name}", f"{ours}.{name}")
            for name in ("moe_permute_fusion", "moe_router_dtype", "moe_grouped_gemm", "apply_rope_fusion")
        ),
    )


def _megatron_limits(paths: _Paths) -> tuple[Row, ...]:
    """Return the rows of options of Megatron that ask for what is not here, or for what is so anyway."""
    options = paths.options
    no_balance = unless((0, 0.0), "no loss of balance is added")
    in_memory = unless(
        (False,), "Megatron keeps optimiser states on the devices", "deepspeed_train with offload_optimizer"
    )
    return (
        *impossible(
            "stages are of equal numbers of layers, but for the first and the last",
            *paths.under("account_for_loss_in_pipeline_split", "account_for_embedding_in_pipeline_split"),
            f"{options}.pipeline_model_parallel_layout",
            instead="num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage",
        ),
        Row(f"{options}.moe_aux_loss_coeff", (), "only 0", no_balance),
        Row(f"{options}.moe_z_loss_coeff", (), "only 0", no_balance),
        Row(f"{options}.fp8", (), "only null", unless((None, False), "weights are not trained in fp8", "dtype: bf16")),
        Row(f"{options}.optimizer_cpu_offload", (), "only false", in_memory),
        *no_effect(
            "log-probs are computed in chunks of the vocabulary's logits (log_prob_chunk_size)",
            *paths.under("cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
        ),
        *no_effect(
            "it is about Megatron's own checkpoint files; the ones here have their own format",
            *paths.under("distrib_optim_fully_reshardable", "dist_ckpt_format"),
        ),
        *no_effect(
            "micro-batches of any length are sent between stages",
            *paths.under("variable_seq_lengths", "overlap_p2p_comm", "batch_p2p_comm"),
        ),
    )


def _fsdp(paths: _Paths) -> tuple[Row, ...]:
    options, ours, dtype = paths.options, paths.ours, paths.dtype

    def number_format(value: Any, look: Look) -> Any:
        return _NUMBERS.get(value, value) if look.native(dtype) is None else Unused("model_args.dtype says it")

    return (
        Row(f"{options}.param_dtype", dtype, "where that is not set", number_format),
        Row(f"{options}.reduce_dtype", f"{ours}.reduce_dtype", "", _named(_NUMBERS)),
        Row(f"{options}.offload_policy", f"{ours}.offload_params"),
        *no_effect("each layer is a unit of its own", f"{options}.wrap_policy"),
        *no_effect("weights travel in buckets (weight_sync)", f"{options}.use_batched_model_update"),
        *no_effect(
            "how experts are computed is the model's own, and changes no number",
            *paths.under("apply_expert_patch", "moe_use_grouped_mm"),
        ),
        *(
            Row(path, (), "only 1", unless((1, None), _EXPERTS, _MEGATRON))
            for path in paths.under("ep_size", "efsdp_size")
        ),
        Row(f"{options}.apply_tiled_mlp", (), "only false", unless((False, None), _TILES, _SMALLER)),
        *no_effect("no MLP is computed in tiles", f"{options}.tiled_num_shards"),
    )


def _engines(paths: _Paths) -> tuple[Row, ...]:
    options = paths.options
    return (
        *no_effect(
            "what an engine gives back while others have its devices is decided by the run",
            *paths.under("sleep_level", "enable_sleep_mode"),
        ),
        *no_effect("it is a variable of vLLM's; those go into system_envs", f"{options}.VLLM_USE_V1"),
        *no_effect("training needs log-probs of the distribution that was drawn from", f"{options}.logprobs_mode"),
        Row(f"{options}.max_num_seqs", "max_running_requests"),
        *no_effect(
            "pictures are not shown to the policy",
            *paths.under("disable_mm_preprocessor_cache", "mm_processor_cache_gb", "limit_mm_per_prompt"),
        ),
    )
