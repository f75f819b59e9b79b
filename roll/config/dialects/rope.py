"""Rotary waves of a model, as other projects write them: the words of ``transformers``, old and new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Sets

_ROLE: Final = "actor_train.model_args"
_KINDS: Final = ("linear", "yarn", "llama3")


def rope_scaling(value: Any, look: Look) -> Any:
    """Return what a ``rope_scaling`` or ``rope_parameters`` of the policy's model sets here."""
    if not isinstance(value, Mapping):
        return Impossible("a kind of scaling alone does not say its factor", "{rope_type: linear, factor: 2}")
    scaling = {key: item for key, item in value.items() if key not in ("type", "rope_type", "rope_theta")}
    kind = value.get("rope_type", value.get("type", "default"))
    theta = {} if value.get("rope_theta") is None else {f"{_ROLE}.rope_theta": value["rope_theta"]}
    if kind == "default":
        return Sets(theta)
    if kind not in _KINDS:
        reason = f"the positions of {kind!r} change with the length of a sequence: engine and trainer would differ"
        return Impossible(reason, "yarn")
    return Sets({f"{_ROLE}.rope_scaling": {"rope_type": kind, **scaling}, **theta})
