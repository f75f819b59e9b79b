"""Options of `megatron_train` and `megatron_infer`, the keys of their ``strategy_config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from roll.config.errors import FixableError
from roll.config.strategy_options import StrategyOptions

Size = Annotated[int, Field(ge=1)]


class MegatronOptions(StrategyOptions):
    """How a model is spread over ranks, what is recomputed, and how experts are computed."""

    key_aliases: ClassVar[Mapping[str, str]] = {
        "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
        "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    }

    load: str | None = Field(
        None,
        description="Checkpoint of Megatron-Core (`torch_dist`), or the folder of a run of Megatron, with the weights "
        "to begin with; architecture and tokenizer are still those of `pretrain`.",
    )
    tensor_model_parallel_size: Size = Field(1, description="Ranks that share every matrix.")
    pipeline_model_parallel_size: Size = Field(1, description="Ranks that share the layers, one stage after another.")
    virtual_pipeline_model_parallel_size: Size | None = Field(
        None, description="Stages per pipeline rank, computed in turn (interleaved schedule); needs a pipeline."
    )
    num_layers_in_first_pipeline_stage: Size | None = Field(None, description="Layers of the first stage, if uneven.")
    num_layers_in_last_pipeline_stage: Size | None = Field(None, description="Layers of the last stage, if uneven.")
    context_parallel_size: Size = Field(1, description="Ranks that share the tokens of each sequence.")
    expert_model_parallel_size: Size = Field(1, description="Ranks that share the experts; part of the data ranks.")
    expert_tensor_parallel_size: Size | None = Field(
        None, description="Ranks that share every expert's matrices; default: `tensor_model_parallel_size`."
    )
    sequence_parallel: bool = Field(
        False, description="Spread activations between matrices over the tensor-parallel ranks too."
    )
    use_distributed_optimizer: bool = Field(True, description="Spread optimiser states over the data-parallel ranks.")
    overlap_grad_reduce: bool = Field(False, description="Sum gradients over ranks while the backward pass goes on.")
    overlap_param_gather: bool = Field(
        False, description="Gather updated weights during the next forward pass; needs the two keys above."
    )
    grad_reduce_in_fp32: bool = Field(True, description="Accumulate and sum gradients in fp32.")
    ddp_bucket_size: Size | None = Field(None, description="Parameters per bucket of gradients that overlap.")
    recompute_granularity: Literal["full", "selective"] | None = Field(
        None, description="Recompute whole layers in the backward pass, or only the parts in `recompute_modules`."
    )
    recompute_method: Literal["uniform", "block"] | None = Field(
        None, description="With `full`: layers in equal groups (default), or the first ones of each stage only."
    )
    recompute_num_layers: Size | None = Field(None, description="With `full`: layers per group, or in the block.")
    recompute_modules: list[str] | None = Field(None, description="With `selective`: default `[core_attn]`.")
    moe_layer_recompute: bool = Field(False, description="Recompute the mixture-of-experts part of each layer.")
    moe_token_dispatcher_type: Literal["alltoall", "allgather", "flex"] = Field(
        "alltoall", description="How tokens travel to experts on other ranks."
    )
    moe_grouped_gemm: bool = Field(False, description="Compute the experts of a rank in one call.")
    moe_router_dtype: Literal["fp32", "fp64"] | None = Field(None, description="Precision of the router.")
    moe_permute_fusion: bool = Field(False, description="Fused permutation of tokens (Transformer Engine).")
    moe_shared_expert_overlap: bool = Field(False, description="Compute shared experts while tokens travel.")
    moe_router_force_load_balancing: bool = Field(
        False, description="Route tokens at random, for measurements of speed only: nothing is learnt."
    )
    attention_backend: Literal["auto", "flash", "fused", "unfused"] = Field(
        "auto", description="Attention kernels of Transformer Engine."
    )
    attention_softmax_in_fp32: bool = Field(True, description="Compute the softmax of attention in fp32.")
    masked_softmax_fusion: bool = Field(
        False, description="Fused mask and softmax of attention that is not fused whole."
    )
    bias_activation_fusion: bool = Field(False, description="Fused activation functions.")
    bias_dropout_fusion: bool = Field(False, description="Fused dropout and residual addition.")
    apply_rope_fusion: bool = Field(False, description="Fused rotary embeddings (Transformer Engine).")
    gradient_accumulation_fusion: bool = Field(
        False, description="Add weight gradients up inside the matrix kernel (Transformer Engine or Apex)."
    )

    @property
    def virtual_stages(self) -> int | None:
        """Stages per pipeline rank, ``None`` where the schedule is not interleaved."""
        size = self.virtual_pipeline_model_parallel_size
        return size if size is not None and size > 1 else None

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one copy of the model and take the same rows."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @model_validator(mode="after")
    def _consistent(self) -> MegatronOptions:
        if self.virtual_stages is not None and self.pipeline_model_parallel_size == 1:
            raise FixableError(
                "virtual_pipeline_model_parallel_size needs a pipeline.",
                "set pipeline_model_parallel_size to 2 or more, or remove virtual_pipeline_model_parallel_size.",
            )
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise FixableError(
                "sequence_parallel needs tensor parallelism.",
                "set tensor_model_parallel_size to 2 or more, or sequence_parallel to false.",
            )
        if self.overlap_param_gather and not (self.use_distributed_optimizer and self.overlap_grad_reduce):
            raise FixableError(
                "overlap_param_gather needs use_distributed_optimizer and overlap_grad_reduce.",
                "set both to true, or overlap_param_gather to false.",
            )
        if self.recompute_granularity == "selective" and (self.recompute_method or self.recompute_num_layers):
            raise FixableError(
                "recompute_method and recompute_num_layers belong to recompute_granularity=full.",
                "remove them, or set recompute_granularity to full.",
            )
        if self.recompute_granularity == "full" and (self.recompute_modules or self.moe_layer_recompute):
            raise FixableError(
                "recompute_modules and moe_layer_recompute belong to recompute_granularity=selective.",
                "remove them, or set recompute_granularity to selective.",
            )
        if self.moe_token_dispatcher_type == "allgather" and self.pipeline_model_parallel_size > 1:
            raise FixableError(
                "the allgather dispatcher cannot run sequences of different lengths through a pipeline.",
                "set moe_token_dispatcher_type to alltoall.",
            )
        experts_tensor = self.expert_tensor_parallel_size or self.tensor_model_parallel_size
        if self.expert_model_parallel_size > 1 and experts_tensor > 1 and not self.sequence_parallel:
            raise FixableError(
                "experts that are spread over ranks and cut into parts need sequence_parallel.",
                "set sequence_parallel to true, or expert_tensor_parallel_size to 1.",
            )
        return self
