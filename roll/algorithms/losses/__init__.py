"""Losses per token, not aggregated, and :func:`compute`, which calls any policy loss by name."""

from roll.algorithms.losses.clipped import cispo, gmpo, gspo, gspo_segment, ppo, sapo
from roll.algorithms.losses.covariance import clip_cov, high_covariance, highest_covariance, kl_cov
from roll.algorithms.losses.critic import value
from roll.algorithms.losses.dispatch import compute, prepare
from roll.algorithms.losses.mirror_descent import kimi15, opmd, opmd_kimi, opmd_pairwise
from roll.algorithms.losses.mixtures import chord, expert_mixture, luffy, mix, mu_schedule
from roll.algorithms.losses.policy_gradient import sppo, tis, topr, vanilla
from roll.algorithms.losses.preference import dpo, ipo, kto, orpo, robust_dpo, simpo
from roll.algorithms.losses.rec import rec
from roll.algorithms.losses.supervised import sft
from roll.algorithms.registry import register_loss

__all__ = [
    "chord",
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
    "ipo",
    "kimi15",
    "kl_cov",
    "kto",
    "luffy",
    "mix",
    "mu_schedule",
    "opmd",
    "opmd_kimi",
    "opmd_pairwise",
    "orpo",
    "ppo",
    "prepare",
    "rec",
    "register_loss",
    "robust_dpo",
    "sapo",
    "sft",
    "simpo",
    "sppo",
    "tis",
    "topr",
    "value",
    "vanilla",
]
