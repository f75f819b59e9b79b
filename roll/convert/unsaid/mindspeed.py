"""What MindSpeed-RL does where a file says nothing: the defaults of its configuration classes that are others here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.paths import value_at

_RL: Final = "rl_config"
_ALWAYS: Final[Mapping[str, Any]] = {
    f"{_RL}.token_level_loss": True,
    "actor_config.lr_decay_style": "linear",
    "actor_config.weight_decay": 0.01,
    "generate_config.sampling_config.temperature": 0.2,
    "generate_config.sampling_config.top_k": 50,
}
_WITH_CRITIC: Final[Mapping[str, Any]] = {f"{_RL}.advantage_whiten": True, f"{_RL}.cliprange_value": 0.5}
_WITH_REFERENCE: Final[Mapping[str, Any]] = {f"{_RL}.init_kl_coef": 0.01, f"{_RL}.kl_penalty": "low_var_kl"}
_DAPO: Final = "ray_dapo"
_OF_DAPO: Final = ("filter_groups_enable", "clip_higher_enable", "overlong_buffer_enable")
"""What is on in files of its DAPO, whose loss has no divergence; not each names its ``stage``."""


def of_mindspeed(pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a job of reinforcement learning by path, whether or not it says the key itself."""
    if _RL not in tree or pipeline not in ("rlvr", "agentic"):
        return {}
    stage = value_at(tree, "megatron_training.stage")
    if value_at(tree, f"{_RL}.adv_estimator") == "gae" or stage == "ray_ppo":
        return {**_ALWAYS, **_WITH_CRITIC}
    has_reference = stage != _DAPO and not any(value_at(tree, f"{_RL}.{name}") is True for name in _OF_DAPO)
    return {**_ALWAYS, **(_WITH_REFERENCE if has_reference else {})}
