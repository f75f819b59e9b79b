"""The `vllm` engine: vLLM's own `AsyncLLM`, on CPUs and GPUs."""

from roll.strategies.generation.vllm.strategy import VllmStrategy

__all__ = ["VllmStrategy"]
