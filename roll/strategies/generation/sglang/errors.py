"""What goes wrong with SGLang."""

from __future__ import annotations


class SglangNotInstalledError(ImportError):
    """SGLang is missing or broken in this environment; the message says how to install it."""

    def __init__(self, cause: ImportError) -> None:
        super().__init__(
            f"strategy sglang needs SGLang, which cannot be imported here ({cause}). With NVIDIA GPUs: "
            "pip install 'roll-rl[sglang]'. docs/sglang.md says more; on CPUs use strategy vllm or hf_infer."
        )


class GenerationError(RuntimeError):
    """The engine failed while a request was running or waiting; the cause is chained."""


class EngineDiedError(RuntimeError):
    """A process of the engine ended."""


class WeightLoadError(RuntimeError):
    """The engine said that it did not load new weights."""
