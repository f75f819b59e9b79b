"""What ChatLearn does where its templates and a script say nothing: the defaults of its dataclasses, and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.paths import value_at

_TRAINER: Final = "models.policy_trainer"
_OPTIMISER: Final[Mapping[str, Any]] = {"lr": 2e-6, "weight_decay": 0.01, "adam_beta2": 0.95}


def of_chatlearn(pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a job by path, whether or not it says the key itself."""
    if pipeline not in ("rlvr", "agentic") or value_at(tree, _TRAINER) is None:
        return {}
    keys = {f"{_TRAINER}.optimizer.{key}": value for key, value in _OPTIMISER.items()}
    keys["loss_agg_mode"] = "token-mean"
    if value_at(tree, f"{_TRAINER}.use_group_sequence_policy") is not True:
        keys[f"{_TRAINER}.final_clip_ratio"] = 3
    return keys
