"""A reward model as verifier: texts in its own template, scored in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.batching import Batches
from roll.rewards.registry import register_verifier

Score = Callable[[list[str]], Sequence[float]]
"""Scores texts, in order."""

Render = Callable[[list[dict[str, str]]], str]
"""Makes the text of a conversation, its last message being the response, as the reward model was trained on it."""


@register_verifier("reward_model", uses=("score", "render", "infer_batch_size"))
class RewardModel:
    """Scores conversations with a model.

    Requests that arrive while a batch is scored make the next batch. The model runs in a thread, one batch at a time.

    Args:
        strip_thinking: Leave out what stands before ``</think>``; reward models are mostly trained on answers alone.
        scale: What the model's score is multiplied with, after ``offset`` is added.
        offset: What is added to the model's score.
        label: Which output of a model with several is the score, by name or index; read where the model is loaded.
        max_length: Texts of more tokens lose their beginning; ``None`` for no limit. Read where the model is loaded.
        score: Given by the pipeline: the model.
        render: Given by the pipeline: its chat template.
        infer_batch_size: Given by the pipeline: texts of one batch.
    """

    def __init__(
        self,
        strip_thinking: bool = False,
        scale: float = 1.0,
        offset: float = 0.0,
        label: str | int | None = None,
        max_length: int | None = None,
        score: Score | None = None,
        render: Render | None = None,
        infer_batch_size: int = 8,
    ) -> None:
        if score is None or render is None:
            raise ValueError("the pipeline gave no reward model; name one in reward_pretrain")
        self._batches: Batches[str, float] = Batches(
            lambda texts: [float(one) for one in score(texts)], infer_batch_size
        )
        self._render = render
        self._strip_thinking = strip_thinking
        self._scale, self._offset = scale, offset

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Wait for the batch that holds this response."""
        response = without_thinking(request.response) if self._strip_thinking else request.response
        conversation: list[Mapping[str, str]] = [*request.messages, {"role": "assistant", "content": response}]
        score = await self._batches(self._render([dict(message) for message in conversation]))
        return Verdict((score + self._offset) * self._scale, {"score": score})


def without_thinking(response: str) -> str:
    """Return what stands behind ``</think>``; all of a response without one."""
    return response.rpartition("</think>")[2].lstrip() if "</think>" in response else response
