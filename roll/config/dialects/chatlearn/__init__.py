"""ChatLearn: ``runtime_args`` and ``models.policy_trainer``, ``ref_policy``, ``policy``, ``reward``."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.chatlearn.run import RUN_ROWS
from roll.config.dialects.chatlearn.sampler import MANAGER_ROWS, SAMPLER_ROWS
from roll.config.dialects.chatlearn.sections import POLICY, REFERENCE, TRAINER
from roll.config.dialects.chatlearn.strategies import STRATEGY_ROWS
from roll.config.dialects.chatlearn.trainer import LOSS_ROWS, TRAINER_ROWS
from roll.config.dialects.rows import Guide

CHATLEARN: Final = Guide(
    "ChatLearn",
    (*TRAINER_ROWS, *RUN_ROWS, *STRATEGY_ROWS, *SAMPLER_ROWS, *MANAGER_ROWS),
    dtype="bf16",
    short={
        "policy_trainer": TRAINER,
        "ref_policy": REFERENCE,
        "policy": POLICY,
        **{row.key.rpartition(".")[2]: row.key for row in LOSS_ROWS},
    },
)
"""The ChatLearn configuration guide; a model's section may stand alone, and so may the keys of the loss."""
