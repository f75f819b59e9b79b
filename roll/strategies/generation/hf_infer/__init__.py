"""Generation with Hugging Face transformers: continuous batching over slots of one key-value cache."""

from roll.strategies.generation.hf_infer.strategy import GenerationError, HfInferStrategy

__all__ = ["GenerationError", "HfInferStrategy"]
