"""Fixed prompts whose answers show whether an engine samples with the weights that it was given."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from tensordict import TensorDict

from roll.generation import Completion, GenerationRequest, SamplingParams

NEW_TOKENS: Final = 4
"""Tokens that are sampled after each prompt, and compared."""

_LENGTHS: Final = (144, 16, 16, 16)
"""Tokens of the prompts. The first is longer than a block of any engine's prefix cache (16 on GPUs, 128 on CPUs)."""

_SEED: Final = 20_011
_PRIORITY: Final = -1
"""Before all requests of a rollout."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine made of a prompt.

    Attributes:
        engine: Rank of the engine.
        prompt_ids: The prompt.
        completion: What it sampled, with its log-probs.
    """

    engine: int
    prompt_ids: Sequence[int]
    completion: Completion


@dataclass(frozen=True, slots=True)
class Probes:
    """Prompts, the same at every check, and how they are continued.

    They are ordinary requests: they take the engine's prefix cache, its kernels and its sampler as those of a rollout
    do, and so find what is wrong with any of these.

    Attributes:
        prompts: Token ids; the first prompt is the longest. Without prompts, nothing is checked.
        temperature: As rollouts have it; the trainer's log-probs are those of this temperature.
        new_tokens: Tokens that are sampled after each.
    """

    prompts: tuple[tuple[int, ...], ...] = ()
    temperature: float = 1.0
    new_tokens: int = NEW_TOKENS

    @classmethod
    def of(cls, token_ids: Sequence[int], max_length: int, temperature: float) -> Probes:
        """Draw prompts.

        Args:
            token_ids: Tokens to draw from: of text, without special ones.
            max_length: Most tokens of a prompt and what follows it.
            temperature: Of rollouts.
        """
        new_tokens = max(1, min(NEW_TOKENS, max_length // 2))
        draw = random.Random(_SEED)
        lengths = (max(1, min(length, max_length - new_tokens)) for length in _LENGTHS)
        return cls(tuple(tuple(draw.choices(token_ids, k=length)) for length in lengths), temperature, new_tokens)

    def first_request(self) -> GenerationRequest:
        """Return a request that leaves the longest prompt in an engine's prefix cache."""
        return self._request("before", 0, 1)

    def requests(self, version: int) -> list[GenerationRequest]:
        """Return all requests, to be asked when an engine has the weights ``version``."""
        return [self._request(str(version), number, self.new_tokens) for number in range(len(self.prompts))]

    def _request(self, name: str, number: int, new_tokens: int) -> GenerationRequest:
        # A session, or hf_infer would keep nothing of the prompt.
        return GenerationRequest(
            f"weight-check/{name}/{number}",
            list(self.prompts[number]),
            SamplingParams(max_new_tokens=new_tokens, temperature=self.temperature),
            seed=number,
            session=f"weight-check/{number}",
            priority=_PRIORITY,
        )


def batch_of(answers: Sequence[Answer]) -> TensorDict:
    """Return prompts with their completions as rows to score; equal ones are one row.

    Returns:
        ``input_ids`` and ``response_mask``, ``[rows, sequence]``, and ``lengths``, ``[rows]``; batch size ``[rows]``.
    """
    rows = list(dict.fromkeys(map(_row, answers)))
    lengths = torch.tensor([len(prompt) + len(completion) for prompt, completion in rows])
    shape = (len(rows), int(lengths.max()))
    input_ids, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    for index, (prompt, completion) in enumerate(rows):
        input_ids[index, : lengths[index]] = torch.tensor([*prompt, *completion])
        mask[index, len(prompt) : lengths[index]] = True
    return TensorDict({"input_ids": input_ids, "response_mask": mask, "lengths": lengths}, batch_size=[len(rows)])


def differences(answers: Sequence[Answer], log_probs: torch.Tensor) -> dict[int, float]:
    """Return by how much each engine's log-probs differ from the trainer's at most, by rank.

    Args:
        answers: Of all engines.
        log_probs: Of the rows of :func:`batch_of` by the trainer, ``[rows, sequence]``.
    """
    places = {row: index for index, row in enumerate(dict.fromkeys(map(_row, answers)))}
    worst: dict[int, float] = {}
    for answer in answers:
        row = _row(answer)
        begin = len(row[0])
        expected = log_probs[places[row], begin : begin + len(row[1])].double().cpu()
        found = (torch.tensor(answer.completion.logprobs, dtype=torch.float64) - expected).abs().max()
        # max() would lose what is no number.
        largest = torch.maximum(found, torch.tensor(worst.get(answer.engine, 0.0), dtype=torch.float64))
        worst[answer.engine] = float(largest)
    return worst


def _row(answer: Answer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(answer.prompt_ids), tuple(answer.completion.token_ids)
