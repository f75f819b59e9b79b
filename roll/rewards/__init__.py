"""Verifiable rewards: verifiers that grade a response, and the rubric that combines them."""

from roll.rewards.base import Grade, RewardRequest, Verdict, Verifier
from roll.rewards.registry import (
    VERIFIERS,
    VerifierOptionError,
    make_verifier,
    register_verifier,
)
from roll.rewards.rubric import Rubric, Term

__all__ = [
    "VERIFIERS",
    "Grade",
    "RewardRequest",
    "Rubric",
    "Term",
    "Verdict",
    "Verifier",
    "VerifierOptionError",
    "make_verifier",
    "register_verifier",
]
