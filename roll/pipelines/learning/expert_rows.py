"""What experts wrote, as rows below those of a step that were sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.data.prompts import Prompt
from roll.pipelines.learning.loss_scope import LOSS_MASK, SAMPLE_WEIGHTS, SAMPLER_WEIGHTS
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.samples import NO_TURN, Sample

EXPERT: Final = "expert"
"""Entry of the batch, ``[batch]`` bool: the rows that an expert wrote."""

STEP: Final = "step"
"""Entry of the batch, ``[batch]`` int64: the training step, the same in every row."""

_ONES: Final = frozenset({SAMPLE_WEIGHTS, SAMPLER_WEIGHTS})
"""Columns that leave an expert's rows as they are where they are 1; all others say nothing where they are 0."""


Open = Callable[[Trajectory], Trajectory]
"""Returns an episode whole, of which there is an outline."""


@dataclass(frozen=True, slots=True)
class Ungraded:
    """An answer of an expert whose score nobody knows yet.

    Attributes:
        number: Its number among the answers.
        row: Of the prompt, among those of training.
        domain: Of the prompt.
        group_id: The group that it joins.
    """

    number: int
    row: int
    domain: str
    group_id: str


class Answers(Protocol):
    """What experts answered to prompts that the policy answers."""

    def samples(self, groups: Sequence[TrajectoryGroup], open_member: Open | None = None) -> Iterator[Sample]:
        """Yield answers that join groups, each with the id of its group; its rewards are what it earned."""
        ...

    def ungraded(
        self, groups: Sequence[TrajectoryGroup], prompts: Sequence[Prompt], open_member: Open
    ) -> list[Ungraded]:
        """Return the answers that would join groups if their scores were known."""
        ...

    def spoken(self, number: int) -> list[int]:
        """Return the tokens of an answer."""
        ...

    def note(self, scores: Mapping[int, float | None]) -> None:
        """Take note of what answers earned, by number."""
        ...


class Experts(Protocol):
    """What experts wrote, in an order that a checkpoint remembers."""

    def take(self) -> tuple[TensorDict, dict[str, float]]:
        """Return the next training step's ``input_ids``, ``response_mask`` and ``lengths``, and metrics."""
        ...

    def state(self) -> dict[str, Any]:
        """Return which rows were taken, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on behind the rows of :meth:`state`."""
        ...


def written_by_expert(batch: TensorDict) -> Tensor:
    """Return which rows an expert wrote, ``[batch]`` bool."""
    written: Tensor = batch.get(EXPERT, None)
    return torch.zeros(len(batch), dtype=torch.bool) if written is None else written


def joined(own: TensorDict, written: TensorDict, step: int, padding: int) -> TensorDict:
    """Return sampled rows with an expert's below them, of which nothing is known but their tokens.

    Args:
        own: The sampled rows with all their columns, ``[batch, …]``.
        written: ``input_ids`` and ``response_mask`` ``[rows, sequence]``, ``lengths`` ``[rows]``.
        step: The training step.
        padding: Fills ``input_ids`` behind a sequence.

    Returns:
        The columns of ``own``, with :data:`EXPERT` and :data:`STEP`.
    """
    width, theirs = own["input_ids"].shape[1], written["input_ids"].shape[1]
    known = {**dict(written.items()), LOSS_MASK: written["response_mask"]}
    columns: dict[str, Tensor] = {}
    for name in map(str, own.keys()):
        column: Tensor = own[name]
        per_token = column.ndim > 1 and column.shape[1] == width
        fill = {"input_ids": padding, "turn_index": NO_TURN}.get(name, int(name in _ONES))
        sizes = [theirs, *column.shape[2:]] if per_token else list(column.shape[1:])
        below = known.get(name, column.new_full([len(written), *sizes], fill))
        if per_token:
            column, below = (_widened(part, max(width, theirs), fill) for part in (column, below))
        columns[name] = torch.cat([column, below])
    rows = len(own) + len(written)
    columns[EXPERT] = torch.arange(rows) >= len(own)
    columns[STEP] = torch.full((rows,), step)
    return TensorDict(columns, batch_size=[rows])


def _widened(column: Tensor, width: int, fill: float) -> Tensor:
    """Pad ``[rows, sequence, …]`` behind its end."""
    missing = column.new_full([len(column), width - column.shape[1], *column.shape[2:]], fill)
    return torch.cat([column, missing], dim=1)
