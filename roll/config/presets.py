"""Named algorithms as sets of settings: a preset fills what is unset and never changes what is set."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from roll.config.errors import FixableError, choose_from

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "ppo": {"adv_estimator": "gae", "policy_loss": "ppo", "loss_agg_mode": "token-mean"},
        "grpo": {"adv_estimator": "grpo", "policy_loss": "ppo", "loss_agg_mode": "token-mean"},
        "opmd": {"adv_estimator": "opmd", "policy_loss": "opmd", "loss_agg_mode": "token-mean"},
        "asymre": {"adv_estimator": "asymre", "policy_loss": "opmd", "loss_agg_mode": "token-mean"},
        "sppo": {"adv_estimator": "opmd", "policy_loss": "sppo", "loss_agg_mode": "token-mean"},
        "rec": {"adv_estimator": "rec", "policy_loss": "rec", "loss_agg_mode": "token-mean"},
        # Preference pairs have a pipeline of their own, which needs none of the keys of reinforcement learning.
        "dpo": {},
        "sft": {"policy_loss": "sft", "loss_agg_mode": "token-mean"},
        "mix": {"adv_estimator": "grpo", "policy_loss": "mix", "loss_agg_mode": "token-mean"},
        "mix_chord": {"adv_estimator": "grpo", "policy_loss": "chord", "loss_agg_mode": "token-mean"},
        "luffy": {"adv_estimator": "grpo", "policy_loss": "luffy", "loss_agg_mode": "token-mean"},
    }
)
"""The keys that each ``algorithm_type`` fills."""


def apply_preset(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with the settings of the preset ``name`` added where ``given`` has none.

    Args:
        name: The configuration's ``algorithm_type``, a key of :data:`PRESETS`.
        given: What the user set; keys with the value ``None`` count as unset.

    Raises:
        FixableError: There is no such preset; a ``ValueError``.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise FixableError("no algorithm has this name.", choose_from(str(name), PRESETS))
    chosen = {key: value for key, value in given.items() if value is not None}
    return {**given, **PRESETS[name], **chosen}
