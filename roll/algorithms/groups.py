"""Groups of samples: any hashable id per sample, dense codes inside, and statistics per group without a loop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GroupIds = Sequence[Hashable] | Tensor


class AlgorithmWarning(UserWarning):
    """Something in the batch makes an algorithm learn nothing, or less than its name promises."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Dense group codes of a batch.

    Attributes:
        codes: ``[batch]`` int64, ``0 .. count - 1`` in order of first appearance.
        count: Number of groups.
    """

    codes: Tensor
    count: int

    def sizes(self, weights: Tensor | None = None) -> Tensor:
        """Return the number (or summed ``weights`` ``[batch]``) of members, ``[count]`` float64."""
        ones = torch.ones_like(self.codes, dtype=torch.float64) if weights is None else weights
        return self.sum(ones)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` ``[batch]`` per group, ``[count]`` float64."""
        total = torch.zeros(self.count, dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.codes, values.double())

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` ``[batch]`` per group, ``[count]`` float64."""
        return self.sum(values) / self.sizes().clamp_min(1.0)

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of ``values`` ``[batch]`` per group, ``[count]``, -inf for an empty one."""
        lowest = torch.full((self.count,), -torch.inf, dtype=values.dtype, device=values.device)
        return lowest.scatter_reduce_(0, self.codes, values, "amax")

    def std(self, values: Tensor, ddof: int = 1) -> Tensor:
        """Return the standard deviation of ``values`` ``[batch]`` per group, ``[count]`` float64, 0 for n <= ddof.

        Two passes in float64: the mean of equal float32 numbers is then exact, so a group without variance gives
        exactly 0 instead of a rounding residue that a small ``eps`` would blow up.
        """
        centred = values.double() - self.mean(values)[self.codes]
        freedom = self.sizes() - ddof
        return torch.where(freedom > 0, self.sum(centred.square()) / freedom.clamp_min(1.0), 0.0).sqrt()


def encode(ids: GroupIds, size: int, *, device: torch.device | str = "cpu", name: str = "group_ids") -> Groups:
    """Map any hashable ids to dense codes.

    Ids are compared, never converted: ``"1"``, ``"01"`` and ``1`` are three groups.

    Args:
        ids: One id per sample: a sequence of hashables, or a 1-D integer tensor.
        size: The batch size the ids must have.
        device: Where the codes go.
        name: What to call the ids in an error.

    Returns:
        The groups, coded in order of first appearance.

    Raises:
        ValueError: The number of ids differs from ``size``.
    """
    members: Iterable[Hashable] = ids.tolist() if isinstance(ids, Tensor) else ids
    table: dict[Hashable, int] = {}
    codes = [table.setdefault(member, len(table)) for member in members]
    if len(codes) != size:
        raise ValueError(f"{name} has {len(codes)} entries for a batch of {size} samples: pass one id per sample.")
    return Groups(torch.tensor(codes, dtype=torch.int64, device=device), len(table))


def pair(first: Groups, second: Groups) -> Groups:
    """Return the groups of samples that share both codes."""
    joint = first.codes * max(second.count, 1) + second.codes
    unique, codes = torch.unique(joint, return_inverse=True)
    return Groups(codes, int(unique.numel()))


def refine(groups: Groups, labels: Tensor) -> Groups:
    """Split groups by an integer label per sample ``[batch]`` (a turn index, a state hash)."""
    unique, codes = torch.unique(labels, return_inverse=True)
    return pair(groups, Groups(codes, int(unique.numel())))


def representatives(groups: Groups, trajectories: Groups) -> Groups:
    """Return the group of each trajectory ``[trajectories.count]`` (groups coded as in ``groups``).

    Raises:
        ValueError: A trajectory has samples in two groups.
    """
    codes = torch.zeros(trajectories.count, dtype=torch.int64, device=groups.codes.device)
    codes[trajectories.codes] = groups.codes
    if not torch.equal(codes[trajectories.codes], groups.codes):
        raise ValueError("a trajectory id occurs in two groups: make trajectory_ids unique across groups.")
    return Groups(codes, groups.count)
