"""A reward model as verifier: texts in its own template, scored in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roll.common.threads import run_in_thread
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import register_verifier

Score = Callable[[list[str]], Sequence[float]]
"""Scores texts, in order."""

Render = Callable[[list[dict[str, str]]], str]
"""Makes the text of a conversation, its last message being the response, as the reward model was trained on it."""


@dataclass(slots=True)
class _Waiting:
    text: str
    score: asyncio.Future[float]


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
        if infer_batch_size < 1:
            raise ValueError(f"infer_batch_size={infer_batch_size}: must be at least 1")
        self._score = score
        self._render = render
        self._batch_size = infer_batch_size
        self._strip_thinking = strip_thinking
        self._scale, self._offset = scale, offset
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Wait for the batch that holds this response."""
        response = request.response
        if self._strip_thinking and "</think>" in response:
            response = response.rpartition("</think>")[2].lstrip()
        conversation: list[Mapping[str, str]] = [*request.messages, {"role": "assistant", "content": response}]
        text = self._render([dict(message) for message in conversation])
        loop = asyncio.get_running_loop()
        if self._worker is not None and self._worker.get_loop() is not loop:
            self._waiting, self._worker = [], None
        entry = _Waiting(text, loop.create_future())
        self._waiting.append(entry)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        score = await entry.score
        return Verdict((score + self._offset) * self._scale, {"score": score})

    async def _work(self) -> None:
        """Score batches until nobody waits."""
        await asyncio.sleep(0)  # whoever else is ready to ask joins the first batch
        while self._waiting:
            batch = [entry for entry in self._waiting[: self._batch_size] if not entry.score.done()]
            del self._waiting[: self._batch_size]
            if not batch:
                continue
            texts = [entry.text for entry in batch]
            try:
                scores = [float(score) for score in await run_in_thread(lambda texts=texts: self._score(texts))]  # type: ignore[misc]
                if len(scores) != len(texts):
                    raise ValueError(f"the reward model returned {len(scores)} scores for {len(texts)} texts")
            except Exception as error:  # everyone in the batch learns of it
                for entry in batch:
                    if not entry.score.done():
                        entry.score.set_exception(error)
                continue
            for entry, score in zip(batch, scores, strict=True):
                if not entry.score.done():
                    entry.score.set_result(score)
