"""What is tried with an environment: each probe runs in a process of its own and returns what it saw, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roll.certificates.probes.contract import contract, describe, endings, gymnasium_checker, odd_texts
from roll.certificates.probes.memory import memory
from roll.certificates.probes.repetition import play, reuse, starts, together
from roll.certificates.probes.scores import explore, policies, solutions

Probe = Callable[..., Any]
"""Takes what is told before each call, the environment, and arguments of its own."""

PROBES: dict[str, Probe] = {
    "describe": describe,
    "contract": contract,
    "gymnasium": gymnasium_checker,
    "play": play,
    "reuse": reuse,
    "together": together,
    "starts": starts,
    "policies": policies,
    "solutions": solutions,
    "explore": explore,
    "endings": endings,
    "odd_texts": odd_texts,
    "memory": memory,
}
