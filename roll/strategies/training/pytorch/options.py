"""Options of `fsdp_train` and `fsdp_infer`, the keys of their ``strategy_config``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roll.config.strategy_options import StrategyOptions


class FsdpOptions(StrategyOptions):
    """How a model is spread over ranks. With one rank only ``torch_compile`` has an effect."""

    fsdp_size: Annotated[int, Field(ge=-1)] = Field(
        -1,
        description="Ranks that share one copy of the weights; it divides the number of ranks, and groups of this size "
        "hold copies of each other. -1 or 0: all ranks.",
    )
    reshard_after_forward: bool = Field(
        True, description="Drop gathered weights after the forward pass and gather them again for the backward pass."
    )
    offload_params: bool = Field(
        False,
        description="Keep weights, gradients and optimiser states in CPU memory; a layer is on the device only while "
        "it computes.",
    )
    reduce_dtype: Literal["fp32", "bf16"] = Field(
        "fp32", description="Number format in which gradients are summed over ranks under mixed precision."
    )
    meta_init: bool = Field(
        False, description="Load the weights on rank 0 only; every rank receives its share from there."
    )
    ulysses_size: Annotated[int, Field(ge=1)] = Field(
        1,
        description="Ranks that share rows and each compute a part of every sequence (Ulysses); it divides the number "
        "of ranks and of attention heads.",
    )
    torch_compile: bool = Field(
        False,
        description="Compile each layer; pays for long runs. Needs a C++ compiler on CPUs, Triton elsewhere.",
    )
