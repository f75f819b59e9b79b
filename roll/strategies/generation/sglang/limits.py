"""Sampling that SGLang cannot do with exact log-probs."""

from __future__ import annotations

from collections.abc import Iterator

from roll.generation import SamplingParams
from roll.strategies.generation.sampling_limits import Refusal


def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what is asked for and cannot be had."""
    for key, off, asked in (("top_k", 0, sampling.top_k > 0), ("top_p", 1, sampling.top_p < 1.0)):
        if sampling.temperature and asked:
            message = (
                "sglang reports log-probs before top-k and top-p, so they would not be those of the distribution "
                "drawn from"
            )
            yield Refusal(key, message, f"set {key}={off}, or use strategy vllm or hf_infer")
    if sampling.repetition_penalty != 1.0:
        message = "sglang's repetition penalty spares the prompt, and forgets the completion when a request is frozen"
        yield Refusal("repetition_penalty", message, "leave it at 1, or use strategy vllm or hf_infer")
