"""Sampling that vLLM cannot do with exact log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from roll.generation import SamplingParams
from roll.strategies.generation.sampling_limits import Refusal

TEMPERATURES: Final = (0.01, 2.0)
"""vLLM silently changes temperatures outside of these, except 0."""


def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what is asked for and cannot be had."""
    lowest, highest = TEMPERATURES
    if sampling.temperature and not lowest <= sampling.temperature <= highest:
        message = f"vllm samples at temperatures from {lowest} to {highest} (and 0, greedy)"
        yield Refusal("temperature", message, f"set one of those, not {sampling.temperature}")
    if sampling.grammar:
        message = "vllm is given token ids alone, and has no tokenizer to hold a completion to a grammar"
        yield Refusal("grammar", message, "leave it out, or use strategy hf_infer")
