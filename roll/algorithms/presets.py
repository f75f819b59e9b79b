"""Named algorithms as sets of settings: a preset fills what is unset and never changes what is set."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ppo": {"adv_estimator": "gae", "policy_loss": "ppo", "loss_agg_mode": "token-mean"},
        "grpo": {"adv_estimator": "grpo", "policy_loss": "ppo", "loss_agg_mode": "token-mean"},
        "opmd": {"adv_estimator": "opmd", "policy_loss": "opmd", "loss_agg_mode": "token-mean"},
        "dpo": {"policy_loss": "dpo"},
        "sft": {"policy_loss": "sft", "loss_agg_mode": "token-mean"},
        "mix": {"adv_estimator": "grpo", "policy_loss": "mix", "loss_agg_mode": "token-mean"},
    }
)


def apply_preset(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with the settings of the preset ``name`` added where ``given`` has none.

    Args:
        name: The configuration's ``algorithm_type``: ``ppo``, ``grpo``, ``opmd``, ``dpo``, ``sft`` or ``mix``.
        given: What the user set; keys with the value ``None`` count as unset.

    Raises:
        ValueError: There is no such preset.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"algorithm_type: unknown {name!r}.{hint} Known: {', '.join(PRESETS)}.")
    chosen = {key: value for key, value in given.items() if value is not None}
    return {**given, **PRESETS[name], **chosen}
