"""Sampling that SGLang cannot do with exact log-probs."""

from __future__ import annotations

from collections.abc import Iterator

from roll.generation import SamplingParams
from roll.strategies.generation.sampling_limits import Refusal


def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what is asked for and cannot be had."""
    cuts = (("top_k", 0, sampling.top_k > 0), ("top_p", 1, sampling.top_p < 1.0), ("min_p", 0, sampling.min_p > 0.0))
    for key, off, asked in cuts:
        if sampling.temperature and asked:
            message = (
                "sglang reports log-probs before top-k, top-p and min-p, so they would not be those of the "
                "distribution drawn from"
            )
            yield Refusal(key, message, f"set {key}={off}, or use strategy vllm or hf_infer")
    if sampling.repetition_penalty != 1.0:
        message = "sglang's repetition penalty spares the prompt, and forgets the completion when a request is frozen"
        yield Refusal("repetition_penalty", message, "leave it at 1, or use strategy vllm or hf_infer")
    if sampling.min_new_tokens:
        message = "sglang reports log-probs as if stop tokens could be drawn from the beginning"
        yield Refusal("min_new_tokens", message, "leave it at 0, or use strategy vllm or hf_infer")
    if sampling.grammar:
        message = "sglang is given token ids alone, and has no tokenizer to hold a completion to a grammar"
        yield Refusal("grammar", message, "leave it out, or use strategy hf_infer")
