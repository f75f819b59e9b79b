"""What a verifier reads and returns. Plain Python: grading needs neither torch nor Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """One response to grade.

    Attributes:
        messages: The conversation before the response (``role``, ``content``).
        response: The response as text, without special tokens.
        ground_truth: What the data set says is right; ``None`` where a row has no answer.
        row: The whole row of the data set, for verifiers that need more (``test_cases``, ``constraints``, …).
        domain: The domain of the prompt: which rubric grades it.
        tag: The row's source.
        finish_reason: ``"stop"`` or ``"length"`` (cut off).
        response_tokens: Tokens of the response, stop token included.
        max_response_tokens: The limit it was sampled under.
    """

    messages: list[dict[str, str]]
    response: str
    ground_truth: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    tag: str = ""
    finish_reason: str = "stop"
    response_tokens: int = 0
    max_response_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verifier made of a response.

    Attributes:
        score: The grade; ``None`` if the response could not be graded, which differs from 0.
        metrics: Numbers to report beside it.
        error: Why there is no score: a readable sentence.
    """

    score: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


class Verifier(Protocol):
    """Grades responses. Called from many coroutines of one event loop at once; blocking work belongs in a thread."""

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Grade one response: a wrong answer has a score, a grader that fails gives ``score=None`` and an error."""
        ...


@dataclass(frozen=True, slots=True)
class Grade:
    """What a rubric made of a response: the sum of its weighted verdicts.

    Attributes:
        score: ``sum(weight * verdict)``; ``None`` if a verdict that counts is missing.
        parts: The weighted scores by verifier name; they sum to ``score``.
        raw: The verdicts before weighting, by verifier name.
        metrics: Numbers that verifiers reported, as ``<verifier>/<name>``.
        correct: Whether the first verifier's raw score reached the rubric's threshold.
        error: The first error, ``None`` if everything was graded.
    """

    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    correct: bool = False
    error: str | None = None
