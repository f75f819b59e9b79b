"""Which configuration keys become options of the chosen estimator and policy loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.algorithms.registry import registry, used_options
from roll.config import RLConfig, SamplingConfig

STD_ESTIMATORS: Final = frozenset({"grpo", "grpo_passk", "gigpo", "step_wise_grpo"})
"""Estimators whose option ``scale`` is the key ``norm_adv_by_std_in_grpo``."""

_SCALES: Final = {True: "std", False: "none"}

LOSS_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "clip_low": ("pg_clip_low", "pg_clip"),
    "clip_high": ("pg_clip_high", "pg_clip"),
    "dual_clip": ("dual_clip_loss",),
}
"""Options of policy losses that have keys of their own."""


def needs_baselines(config: SamplingConfig) -> bool:
    """Whether the estimator, if the run has one, compares with a greedy answer to the same prompt."""
    return config.estimator is not None and "baselines" in registry("advantage").get(config.estimator).needs


def estimator_keys(estimator: str) -> dict[str, tuple[str, ...]]:
    """Return the options of ``estimator`` that have keys of their own, with those keys."""
    # step_reinforce discounts per turn, which has a key of its own.
    gamma = "step_reward_gamma" if estimator == "step_reinforce" else "gamma"
    keys: dict[str, tuple[str, ...]] = {
        "gamma": (gamma,),
        "lambd": ("lambd",),
        "step_reward_gamma": ("step_reward_gamma",),
        "step_reward_weight": ("step_reward_weight",),
    }
    if estimator in STD_ESTIMATORS:
        keys["scale"] = ("norm_adv_by_std_in_grpo",)
    return used_options(estimator, keys)


def loss_keys(loss: str) -> dict[str, tuple[str, ...]]:
    """Return the options of the policy loss that have keys of their own, with those keys."""
    return used_options(loss, LOSS_KEYS, "loss")


def estimator_options(config: RLConfig) -> dict[str, Any]:
    """Return the options of the chosen estimator: its own keys, and ``advantage_options``.

    Keys that were not set leave the estimator its own default.
    """
    values: dict[str, Any] = {}
    for option, (key,) in estimator_keys(config.adv_estimator).items():
        # The default of step_reward_gamma is not that of step_reinforce's gamma.
        if key in config.model_fields_set or key == "step_reward_gamma":
            value = getattr(config, key)
            values[option] = _SCALES[value] if key == "norm_adv_by_std_in_grpo" else value
    return {**config.advantage_options, **values}


def loss_options(config: RLConfig) -> dict[str, Any]:
    """Return the options of the chosen policy loss: its own keys, and ``policy_loss_options``.

    Keys that were not set leave the loss its own default: ``gspo`` and ``gmpo`` clip in other ranges than ``ppo``.
    """
    given = {"clip_low": config.clip_low, "clip_high": config.clip_high, "dual_clip": config.dual_clip}
    known = {option: value for option, value in given.items() if value is not None}
    return {**config.policy_loss_options, **used_options(config.policy_loss_name, known, "loss")}
