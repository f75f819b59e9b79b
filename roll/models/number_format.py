"""The number format that a model itself has: what ``config.json`` says, else what its weights are stored in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from huggingface_hub import hf_hub_download
from safetensors import safe_open

from roll.common.number_format import format_in, format_of
from roll.models.finding import not_loadable, resolve_pretrain

_STORED: Final = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of safetensors, and of PyTorch."""


def own_format(pretrain: str) -> str:
    """Return the number format of a model, ``fp32`` or ``bf16``; ``fp32`` where nothing says it.

    Args:
        pretrain: A built-in model, a folder, or a Hugging Face name, of which only the description is fetched.

    Raises:
        ModelNotFoundError: If nothing loadable is there.
    """
    place = Path(resolve_pretrain(pretrain))
    try:
        path = place / "config.json" if place.is_dir() else Path(hf_hub_download(str(place), "config.json"))
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise not_loadable(pretrain, error) from error
    return format_in(described) or _of_weights(place) or "fp32"


def _of_weights(folder: Path) -> str | None:
    """Return the format of the first weights of a folder that are no whole numbers, as ``transformers`` takes it."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            stored = (weights.get_slice(name).get_dtype() for name in weights.keys())  # noqa: SIM118 (no mapping)
            return next((format_of(_STORED[kind]) for kind in stored if kind in _STORED), None)
    return None
