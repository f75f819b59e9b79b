"""Sampling that an engine cannot do with exact log-probs: said before a run begins, and of every request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from roll.generation import SamplingParams

VLLM_TEMPERATURES: Final = (0.01, 2.0)
"""vLLM silently changes temperatures outside of these, except 0."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sampling parameter that an engine does not have.

    Attributes:
        key: Its name.
        message: What is wrong.
        fix: What to do.
    """

    key: str
    message: str
    fix: str


def refusals(engine: str, sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what the engine of this name cannot do.

    Args:
        engine: Name of a strategy: ``hf_infer`` (can do everything), ``vllm``, ``sglang``.
        sampling: What is asked for.
    """
    if engine == "vllm":
        lowest, highest = VLLM_TEMPERATURES
        if sampling.temperature and not lowest <= sampling.temperature <= highest:
            message = f"vllm samples at temperatures from {lowest} to {highest} (and 0, greedy)"
            yield Refusal("temperature", message, f"set one of those, not {sampling.temperature}")
    if engine == "sglang":
        for key, off, asked in (("top_k", 0, sampling.top_k > 0), ("top_p", 1, sampling.top_p < 1.0)):
            if sampling.temperature and asked:
                message = (
                    "sglang reports log-probs before top-k and top-p, so they would not be those of the distribution "
                    "drawn from"
                )
                yield Refusal(key, message, f"set {key}={off}, or use strategy vllm or hf_infer")
        if sampling.repetition_penalty != 1.0:
            message = (
                "sglang's repetition penalty spares the prompt, and forgets the completion when a request is frozen"
            )
            yield Refusal("repetition_penalty", message, "leave it at 1, or use strategy vllm or hf_infer")


def check_limits(engine: str, request_id: str, sampling: SamplingParams) -> None:
    """Refuse a request that the engine cannot sample.

    Raises:
        ValueError: With the first of :func:`refusals`.
    """
    for refusal in refusals(engine, sampling):
        raise ValueError(f"request {request_id!r}: {refusal.message}; {refusal.fix}")
