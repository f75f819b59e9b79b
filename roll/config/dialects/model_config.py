"""Overrides of a model's ``config.json``, as other projects write them: the words of ``transformers``, old and new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Convert, Impossible, Look, Sets, Unused

_KINDS: Final = ("linear", "yarn", "llama3")
_TAKEN: Final = (
    *("rope_scaling", "rope_parameters", "rope_theta", "attn_implementation"),
    *("model_config", "max_position_embeddings"),
)
OVERRIDES: Final = ("rope_scaling", "rope_theta", "attn_implementation")
"""What of ``model_args`` they set."""


def rope_scaling(role: str) -> Convert:
    """Return what reads a ``rope_scaling`` or ``rope_parameters``.

    Args:
        role: Whose model it is of, by its native path.
    """
    arguments = f"{role}.model_args"

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, Mapping):
            return Impossible("a kind of scaling alone does not say its factor", "{rope_type: linear, factor: 2}")
        scaling = {key: item for key, item in value.items() if key not in ("type", "rope_type", "rope_theta")}
        kind = value.get("rope_type", value.get("type", "default"))
        theta = {} if value.get("rope_theta") is None else {f"{arguments}.rope_theta": value["rope_theta"]}
        if kind == "default":
            return Sets(theta)
        if kind not in _KINDS:
            reason = f"the positions of {kind!r} change with the length of a sequence: engine and trainer would differ"
            return Impossible(reason, "yarn")
        return Sets({f"{arguments}.rope_scaling": {"rope_type": kind, **scaling}, **theta})

    return convert


def config_overrides(role: str) -> Convert:
    """Return what reads overrides of a ``config.json``: other rotary waves and attention kernels can be had here.

    Args:
        role: Whose model it is of, by its native path.
    """
    arguments, scaled = f"{role}.model_args", rope_scaling(role)

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, Mapping):
            return Unused() if not value else Impossible("a model is loaded as its config.json says", "change that")
        inside = value.get("model_config")
        flat = {**value, **(inside if isinstance(inside, Mapping) else {})}
        left = sorted(key for key, item in flat.items() if key not in _TAKEN and not _changes_nothing(key, item))
        if left:
            reason = f"of a config.json only rotary waves and attention kernels can be changed, not {', '.join(left)}"
            return Impossible(reason, "change it in the model's folder")
        values: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            if flat.get(key):
                found = scaled(flat[key], look)
                if not isinstance(found, Sets):
                    return found
                values |= found.values
        if flat.get("rope_theta") is not None:
            values[f"{arguments}.rope_theta"] = flat["rope_theta"]
        if flat.get("attn_implementation") is not None:
            kernel = flat["attn_implementation"]
            values[f"{arguments}.attn_implementation"] = "fa2" if str(kernel).startswith("flash") else kernel
        return Sets(values) if values else Unused("positions are as many as tokens, and nothing is dropped, without it")

    return convert


def _changes_nothing(key: str, value: Any) -> bool:
    """Tell whether it says what holds here anyway: models are trained without dropout."""
    return not value and (key.endswith(("dropout", "_pdrop")) or value is None or value == {})
