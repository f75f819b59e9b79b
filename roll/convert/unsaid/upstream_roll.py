"""What ROLL does where a file says nothing: the defaults of its dataclasses that are others here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.paths import value_at

_TRAINED: Final = ("actor_train", "critic", "student", "student_train", "sft_train")
_TRAINING: Final[Mapping[str, Any]] = {"learning_rate": 5e-5, "lr_scheduler_type": "linear"}
_SAMPLED: Final = ("actor_infer", "student_infer", "validation")
_SAMPLING: Final[Mapping[str, Any]] = {"temperature": 0.95, "top_p": 0.7, "top_k": 50}
_ESTIMATOR: Final = "adv_estimator"
_WITH: Final[Mapping[tuple[str, Any], Mapping[str, Any]]] = {
    (_ESTIMATOR, "gae"): {"value_clip": None},
    ("use_pg_clip_range", True): {"pg_clip_low": 0.2, "pg_clip_high": 0.2},
    ("add_token_level_kl", True): {"init_kl_coef": 0.2},
    ("difficulty_mask", True): {"difficulty_low_threshold": 0.0, "difficulty_high_threshold": 1.0},
}
"""Defaults that count only where another key has a value."""


def of_roll(pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a file by path, whether or not it says the key itself."""
    keys: dict[str, Any] = {}
    if pipeline in ("rlvr", "agentic") and "actor_train" in tree:
        keys[_ESTIMATOR] = "gae"
        for (key, value), defaults in _WITH.items():
            keys |= defaults if tree.get(key, keys.get(key)) == value else {}
    if pipeline == "sft":
        keys["sft_train.data_args.shuffle"] = False
    for roles, section, defaults in ((_TRAINED, "training_args", _TRAINING), (_SAMPLED, "generating_args", _SAMPLING)):
        for path in (f"{role}.{section}" for role in roles):
            if isinstance(value_at(tree, path), Mapping):
                keys |= {f"{path}.{key}": value for key, value in defaults.items()}
    return keys
