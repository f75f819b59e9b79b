"""Advantage estimators: pure functions of tensors, and :func:`compute`, which calls any of them by name."""

from roll.algorithms.advantages import builtin as _builtin  # noqa: F401 - registers the built-in estimators
from roll.algorithms.advantages.inputs import AdvantageInputs, AdvantageOutput, compute, finish, zero_variance_share
from roll.algorithms.advantages.outcome import asymre, gpg, grpo, grpo_passk, opmd, opo, rec, remax, rloo
from roll.algorithms.advantages.token import gae, reinforce, reinforce_plus_plus, reinforce_plus_plus_baseline
from roll.algorithms.advantages.turn import agentic_reinforce, gigpo, step_reinforce, step_wise_grpo, turn_returns
from roll.algorithms.masking import masked_whiten
from roll.algorithms.registry import register_advantage

__all__ = [
    "AdvantageInputs",
    "AdvantageOutput",
    "agentic_reinforce",
    "asymre",
    "compute",
    "finish",
    "gae",
    "gigpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "masked_whiten",
    "opmd",
    "opo",
    "rec",
    "register_advantage",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "step_reinforce",
    "step_wise_grpo",
    "turn_returns",
    "zero_variance_share",
]
