"""Which samples of a batch are pieces of one trajectory: a forked history, or one sample per turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roll.trajectories.samples import Sample


@dataclass(frozen=True, slots=True)
class TrajectoryIndex:
    """Which samples of a batch are of which trajectory.

    Attributes:
        trajectory: ``[batch]`` int64, the trajectory of each sample, numbered in order of first appearance.
        first: ``[trajectories]`` int64, the first sample of each.
        last: ``[batch]`` bool, whether the sample is the last of its trajectory.
        groups: The group of each trajectory.
        tags: The environment tag or domain of each trajectory.
    """

    trajectory: Tensor
    first: Tensor
    last: Tensor
    groups: list[str]
    tags: list[str]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> TrajectoryIndex:
        """Find the trajectories of ``samples``, which are in the order of the batch."""
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(sample.trajectory, len(numbers)) for sample in samples]
        last_row = {code: row for row, code in enumerate(codes)}
        first_row = {code: row for row, code in reversed(list(enumerate(codes)))}
        first = [first_row[code] for code in range(len(numbers))]
        return cls(
            trajectory=torch.tensor(codes, dtype=torch.int64),
            first=torch.tensor(first, dtype=torch.int64),
            last=torch.tensor([last_row[code] == row for row, code in enumerate(codes)], dtype=torch.bool),
            groups=[samples[row].group_id for row in first],
            tags=[samples[row].tag for row in first],
        )

    @property
    def whole(self) -> bool:
        """Whether every sample is a trajectory of its own."""
        return len(self.first) == len(self.trajectory)

    def spread(self, per_trajectory: Tensor) -> Tensor:
        """Give every sample the value of its trajectory, ``[batch]``."""
        return per_trajectory[self.trajectory]

    def total(self, per_sample: Tensor) -> Tensor:
        """Sum ``[batch]`` over the pieces of each trajectory, ``[trajectories]``."""
        return torch.zeros(len(self.first), dtype=per_sample.dtype).index_add_(0, self.trajectory, per_sample)

    def later(self, per_sample: Tensor) -> Tensor:
        """Sum ``[batch]`` over the pieces that follow each sample in its trajectory, ``[batch]``."""
        order = torch.argsort(self.trajectory, stable=True)
        through = per_sample[order].double().cumsum(0)
        ends = self.total(torch.ones_like(self.trajectory)).cumsum(0) - 1
        result = torch.empty_like(per_sample)
        result[order] = (through[ends][self.trajectory[order]] - through).to(per_sample.dtype)
        return result
