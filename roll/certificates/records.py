"""What a certificate is made of: findings, and how much is tried for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSURE = "unsure"
    """Worth knowing, or not to be decided from outside; the environment is fit all the same."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        check: Its name, ``group.name``.
        question: What it asks, as a statement that is true of a sound environment.
        status: What came of it.
        seen: What was observed, in a sentence or two.
        fix: What to do about it; empty where there is nothing to do.
    """

    check: str
    question: str
    status: Status
    seen: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried.

    Attributes:
        seeds: Episodes that are compared with one another under other conditions.
        groups: Groups that random play is measured on.
        members: Episodes per group.
        longest: Steps after which an episode is given up.
        explored_steps: Steps in which a way to succeed is looked for, per seed.
        memory_episodes: Episodes between two looks at the memory; 0 leaves memory and speed out.
        learning_steps: Steps for which the toy policy is trained; 0 leaves that out.
        call_seconds: After so long without an answer the environment hangs.
        probe_seconds: After so long no further episode is begun.
    """

    seeds: int = 32
    groups: int = 24
    members: int = 8
    longest: int = 512
    explored_steps: int = 4000
    memory_episodes: int = 48
    learning_steps: int = 0
    call_seconds: float = 20.0
    probe_seconds: float = 30.0


QUICK = Effort(
    seeds=6, groups=8, members=4, longest=256, explored_steps=600, memory_episodes=0, call_seconds=5, probe_seconds=5
)
"""What ``roll envs check`` tries: some seconds."""


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What a scripted policy earned.

    Attributes:
        policy: Its name.
        episodes: How many it played.
        mean_score: Mean sum of rewards.
        success: Share of episodes with success, ``None`` where the environment does not say.
        valid: Share of its responses in which the environment found an action, ``None`` where it does not say.
        mean_steps: Mean length of an episode.
    """

    policy: str
    episodes: int
    mean_score: float
    success: float | None
    valid: float | None
    mean_steps: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """Everything that was found out about an environment that is the same whenever it is asked.

    Attributes:
        environment: Tag, or ``module:factory``.
        findings: One for each check.
        policies: What each scripted policy earned.
        about: Class, instruction, actions, limits, as the environment says them.
        versions: Of ``roll``, Gymnasium, NumPy and Python.
        effort: How much was tried.
        learning: Mean reward of each training step of the toy policy; empty if it was not trained.
    """

    environment: str
    findings: tuple[Finding, ...]
    policies: tuple[PolicyResult, ...]
    about: Mapping[str, Any]
    versions: Mapping[str, str]
    effort: Effort
    learning: Sequence[float] = field(default=())

    @property
    def is_fit(self) -> bool:
        """Whether the environment is fit to train on: no check failed."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [finding.check for finding in self.findings if finding.status is Status.FAILED]
