"""Losses per token, not aggregated, and :func:`compute`, which calls any policy loss by name."""

from roll.algorithms.losses.clipped import cispo, gmpo, gspo, gspo_segment, ppo, sapo
from roll.algorithms.losses.covariance import clip_cov, high_covariance, highest_covariance, kl_cov
from roll.algorithms.losses.critic import value
from roll.algorithms.losses.dispatch import compute, prepare
from roll.algorithms.losses.policy_gradient import kimi15, opmd, tis, topr, vanilla
from roll.algorithms.losses.supervised import dpo, expert_mixture, mix, sft
from roll.algorithms.registry import register_loss

__all__ = [
    "cispo",
    "clip_cov",
    "compute",
    "dpo",
    "expert_mixture",
    "gmpo",
    "gspo",
    "gspo_segment",
    "high_covariance",
    "highest_covariance",
    "kimi15",
    "kl_cov",
    "mix",
    "opmd",
    "ppo",
    "prepare",
    "register_loss",
    "sapo",
    "sft",
    "tis",
    "topr",
    "value",
    "vanilla",
]
