"""Losses per token, not aggregated, and :func:`compute`, which calls any policy loss by name."""

from roll.algorithms.losses.clipped import cispo, gmpo, gspo, gspo_segment, ppo, sapo
from roll.algorithms.losses.combined import combine, value
from roll.algorithms.losses.dispatch import compute
from roll.algorithms.losses.policy_gradient import kimi15, opmd, tis, topr, vanilla
from roll.algorithms.losses.supervised import dpo, mix, sft
from roll.algorithms.registry import register_loss

__all__ = [
    "cispo",
    "combine",
    "compute",
    "dpo",
    "gmpo",
    "gspo",
    "gspo_segment",
    "kimi15",
    "mix",
    "opmd",
    "ppo",
    "register_loss",
    "sapo",
    "sft",
    "tis",
    "topr",
    "value",
    "vanilla",
]
