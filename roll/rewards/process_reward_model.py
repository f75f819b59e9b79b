"""A process reward model as verifier: every step of a response, scored in batches, and one number made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.batching import Batches
from roll.rewards.registry import register_verifier
from roll.rewards.reward_model import without_thinking

Answered = tuple[list[dict[str, Any]], str]
"""What was asked, as messages, and the response."""

ScoreSteps = Callable[[list[Answered]], Sequence[Sequence[float]]]
"""Returns of each response the probability that a step is right, for each of its steps."""

SEPARATOR: Final = "\n"
"""What stands between two steps, where nothing says otherwise."""

AGGREGATES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = MappingProxyType(
    {
        "min": min,
        "mean": lambda scores: sum(scores) / len(scores),
        "last": lambda scores: scores[-1],
        "product": math.prod,
    }
)
"""From the scores of steps to that of the response."""


@register_verifier("process_reward_model", uses=("score_steps", "infer_batch_size"))
class ProcessRewardModel:
    """Scores the steps of responses with a model.

    Args:
        aggregate: What is made of the steps' probabilities: ``min``, ``mean``, ``last`` or ``product``.
        separator: What stands between two steps; the model was trained with it behind every step. Read where the model
            is loaded.
        strip_thinking: Leave out what stands before ``</think>``.
        scale: What the aggregate is multiplied with, after ``offset`` is added.
        offset: What is added to the aggregate.
        score_steps: Given by the pipeline: the model.
        infer_batch_size: Given by the pipeline: responses of one batch.
    """

    def __init__(
        self,
        aggregate: str = "min",
        separator: str = SEPARATOR,
        strip_thinking: bool = False,
        scale: float = 1.0,
        offset: float = 0.0,
        score_steps: ScoreSteps | None = None,
        infer_batch_size: int = 8,
    ) -> None:
        if aggregate not in AGGREGATES:
            raise ValueError(f"aggregate={aggregate!r}: use one of {', '.join(AGGREGATES)}")
        if not separator:
            raise ValueError("separator is empty: nothing would tell steps apart")
        if score_steps is None:
            raise ValueError("the pipeline gave no reward model; name one in reward_pretrain")
        self._batches = Batches(score_steps, infer_batch_size)
        self._aggregate = AGGREGATES[aggregate]
        self._strip_thinking = strip_thinking
        self._scale, self._offset = scale, offset

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Wait for the batch that holds this response."""
        response = without_thinking(request.response) if self._strip_thinking else request.response
        scores = await self._batches(([dict(message) for message in request.messages], response))
        found = self._aggregate(scores)
        metrics = {"score": found, "steps": float(len(scores)), "worst_step": min(scores)}
        return Verdict((found + self._offset) * self._scale, metrics)
