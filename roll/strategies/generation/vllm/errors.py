"""What goes wrong with vLLM."""

from __future__ import annotations


class VllmNotInstalledError(ImportError):
    """vLLM is missing or broken in this environment; the message says how to install it."""

    def __init__(self, cause: ImportError) -> None:
        super().__init__(
            f"strategy vllm needs vLLM, which cannot be imported here ({cause}). On a machine without GPUs run "
            "`make vllm`; with NVIDIA GPUs: pip install 'roll-rl[vllm]'. docs/vllm.md says more."
        )


class GenerationError(RuntimeError):
    """The engine failed while a request was running or waiting; the cause is chained."""


class WeightLoadError(RuntimeError):
    """The engine's processes could not load new weights."""
