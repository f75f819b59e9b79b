"""Options of `hf_infer`, the keys of its ``strategy_config``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from roll.config.strategy_options import StrategyOptions


class UnusableOptionError(ValueError):
    """An option that cannot be had with this model, or here."""

    option: ClassVar[str]


class HfInferOptions(StrategyOptions):
    """How it samples. A model that only scores has no use for them."""

    max_prefill_tokens: Annotated[int, Field(ge=1)] = Field(
        4096,
        description="Most prompt tokens in one step. What is being sampled goes on beside them, and waits for a long "
        "prompt by at most one such step.",
    )
    draft_tokens: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Most tokens that are guessed ahead of a sequence, from what followed the same tokens before, and "
        "computed in one step with what it has. Changes no token; pays where few sequences run, or on a GPU.",
    )
    pack_weights: bool = Field(
        False,
        description="On CPUs, keep a second copy of the weights of linear layers (in fp32 where the processor "
        "multiplies no bf16), in an order that is quicker to multiply; of models with 32 MB of them or more.",
    )
    torch_compile: bool = Field(
        False,
        description="Compile the model at its first steps, for one to three minutes, so that one kernel does what "
        "lies between two products; pays for long runs. Needs a C++ compiler on CPUs, Triton elsewhere.",
    )
