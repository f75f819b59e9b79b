"""What a system does where a file says nothing, and this one does something else: keys in its own spelling.

A launch script of verl says what differs from verl's ``ppo_trainer.yaml``; what it leaves out is part of the job too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.paths import value_at
from roll.convert.reading.assumed import set_in

_ESTIMATOR: Final = "algorithm.adv_estimator"
_VERL: Final[Mapping[str, Any]] = {
    _ESTIMATOR: "gae",
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
}
_VERL_WITH_CRITIC: Final[Mapping[str, Any]] = {
    "algorithm.lam": 1.0,
    "critic.cliprange_value": 0.5,
    "critic.optim.lr": 1e-5,
    "critic.optim.weight_decay": 0.01,
}
_LOSS: Final = "actor_rollout_ref.actor.policy_loss.loss_mode"
_VERL_OF_PPO: Final[Mapping[str, Any]] = {"actor_rollout_ref.actor.clip_ratio_c": 3.0}
_VALIDATION: Final = "actor_rollout_ref.rollout.val_kwargs"


def unsaid(system: str, pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return by path what a job of reinforcement learning leaves to its system; nothing for any other.

    Args:
        system: Whose it is, a key of ``SYSTEMS``.
        pipeline: The kind of run that it becomes.
        tree: Its keys.
    """
    if system != "verl" or "actor_rollout_ref" not in tree or pipeline not in ("rlvr", "agentic"):
        return {}
    estimator = value_at(tree, _ESTIMATOR) or _VERL[_ESTIMATOR]
    keys = {**_VERL, **(_VERL_WITH_CRITIC if estimator == "gae" else {})}
    keys |= _VERL_OF_PPO if value_at(tree, _LOSS) in (None, "vanilla") else {}
    if pipeline == "rlvr" and set_in(tree, "data.val_files") and not set_in(tree, f"{_VALIDATION}.temperature"):
        keys[f"{_VALIDATION}.do_sample"] = False
    return {path: value for path, value in keys.items() if not set_in(tree, path)}
