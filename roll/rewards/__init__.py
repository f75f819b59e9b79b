"""Verifiable rewards: verifiers that grade a response, and the rubric that combines them."""

from roll.rewards.base import Grade, RewardRequest, Verdict, Verifier
from roll.rewards.registry import (
    UnknownVerifierError,
    VerifierOptionError,
    make_verifier,
    register_verifier,
    verifier_names,
)
from roll.rewards.rubric import Rubric, Term

__all__ = [
    "Grade",
    "RewardRequest",
    "Rubric",
    "Term",
    "UnknownVerifierError",
    "Verdict",
    "Verifier",
    "VerifierOptionError",
    "make_verifier",
    "register_verifier",
    "verifier_names",
]
