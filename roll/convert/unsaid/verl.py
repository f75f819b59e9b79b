"""What verl does where a launch script says nothing: the keys of its ``ppo_trainer.yaml`` that are others here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.paths import value_at
from roll.convert.reading.assumed import set_in

_ESTIMATOR: Final = "algorithm.adv_estimator"
_ALWAYS: Final[Mapping[str, Any]] = {
    _ESTIMATOR: "gae",
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
}
_WITH_CRITIC: Final[Mapping[str, Any]] = {
    "algorithm.lam": 1.0,
    "critic.cliprange_value": 0.5,
    "critic.optim.lr": 1e-5,
    "critic.optim.weight_decay": 0.01,
}
_LOSS: Final = "actor_rollout_ref.actor.policy_loss.loss_mode"
_OF_PPO: Final[Mapping[str, Any]] = {"actor_rollout_ref.actor.clip_ratio_c": 3.0}
_VALIDATION: Final = "actor_rollout_ref.rollout.val_kwargs"


def of_verl(pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a job of reinforcement learning by path, whether or not it says the key itself."""
    if "actor_rollout_ref" not in tree or pipeline not in ("rlvr", "agentic"):
        return {}
    estimator = value_at(tree, _ESTIMATOR) or _ALWAYS[_ESTIMATOR]
    keys = {**_ALWAYS, **(_WITH_CRITIC if estimator == "gae" else {})}
    keys |= _OF_PPO if value_at(tree, _LOSS) in (None, "vanilla") else {}
    if pipeline == "rlvr" and set_in(tree, "data.val_files") and not set_in(tree, f"{_VALIDATION}.temperature"):
        keys[f"{_VALIDATION}.do_sample"] = False
    return keys
