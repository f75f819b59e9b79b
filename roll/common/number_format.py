"""Number formats of models, as ``model_args.dtype`` calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Nothing here trains in fp16, and an engine computes as the trainer does.
_FORMATS: Final = {"float32": "fp32", "float64": "fp32", "bfloat16": "bf16", "float16": "bf16"}
"""What a model computes in that is stored so."""


def format_in(config: Mapping[str, Any]) -> str | None:
    """Return the number format that a ``config.json`` names, ``None`` if it names none.

    Args:
        config: Its keys; of a model that sees pictures, the text part inside may say it.
    """
    text = config.get("text_config") or {}
    named = (part.get(key) for part in (config, text) for key in ("dtype", "torch_dtype"))
    return next((format_of(name) for name in named if isinstance(name, str)), None)


def format_of(name: str) -> str | None:
    """Return the format in which a model computes whose weights are of a type of PyTorch, ``None`` for no such type."""
    return _FORMATS.get(name.removeprefix("torch."))
