"""Which samples and groups take part: masks by length and difficulty, filters of groups that teach nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roll.algorithms.groups import GroupIds, encode
from roll.algorithms.masking import as_bool


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The outcome of a filter.

    Attributes:
        keep: ``[batch]`` bool, samples whose group stays.
        groups: Groups seen.
        kept: Groups that stay.
    """

    keep: Tensor
    groups: int
    kept: int

    def refill(self, wanted: int | None = None) -> int:
        """Return how many groups must be sampled anew to reach ``wanted`` (as many as were seen, without it)."""
        return max((self.groups if wanted is None else wanted) - self.kept, 0)


@torch.no_grad()
def max_length_mask(mask: Tensor, max_length: int, finished: Tensor | None = None) -> Tensor:
    """Leave out answers cut off at the limit (``max_len_mask``).

    Args:
        mask: ``[batch, sequence]``.
        max_length: Rows with at least this many trained tokens were cut off.
        finished: ``[batch]`` bool: rows that ended by themselves stay, whatever their length.

    Returns:
        ``[batch, sequence]`` bool.

    Source: Yu et al. 2025, DAPO (overlong filtering).
    """
    inside = as_bool(mask)
    keep = inside.sum(1) < max_length
    if finished is not None:
        keep = keep | as_bool(finished)
    return inside & keep.unsqueeze(-1)


@torch.no_grad()
def difficulty_mask(mask: Tensor, difficulty: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Keep samples whose difficulty lies within [low, high] (``difficulty_mask`` and its two thresholds).

    Args:
        mask: ``[batch, sequence]``.
        difficulty: ``[batch]``, for example the mean score of the sample's group.
        low: Smallest difficulty kept.
        high: Largest difficulty kept.

    Returns:
        ``[batch, sequence]`` bool.

    Raises:
        ValueError: ``low`` exceeds ``high``.
    """
    if low > high:
        raise ValueError(f"difficulty thresholds: low={low} exceeds high={high}.")
    keep = (difficulty >= low) & (difficulty <= high)
    return as_bool(mask) & keep.unsqueeze(-1)


@torch.no_grad()
def zero_variance_filter(scores: Tensor, group_ids: GroupIds, tolerance: float = 0.0) -> GroupFilter:
    """Drop groups whose scores are all equal, which give every member advantage 0.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        tolerance: Groups with a standard deviation up to this are dropped too.

    Returns:
        What stays, and how many groups to sample anew (``.refill()``).

    Source: Yu et al. 2025, DAPO (dynamic sampling).
    """
    return mean_std_filter(scores, group_ids, minimum_std=tolerance)


@torch.no_grad()
def mean_std_filter(
    scores: Tensor,
    group_ids: GroupIds,
    *,
    minimum_mean: float = -float("inf"),
    maximum_mean: float = float("inf"),
    minimum_std: float | None = None,
) -> GroupFilter:
    """Keep groups (queries) whose mean score lies in a range and whose standard deviation exceeds a bound.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        minimum_mean: Smallest mean kept; above it the query is not too hard.
        maximum_mean: Largest mean kept; below it the query is not too easy.
        minimum_std: Groups must exceed it; ``None`` asks nothing of the spread.

    Returns:
        What stays.

    Raises:
        ValueError: ``minimum_mean`` exceeds ``maximum_mean``.
    """
    if minimum_mean > maximum_mean:
        raise ValueError(f"query filter: minimum_mean={minimum_mean} exceeds maximum_mean={maximum_mean}.")
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    mean = groups.mean(scores)
    good = (mean >= minimum_mean) & (mean <= maximum_mean)
    if minimum_std is not None:
        good = good & (groups.std(scores) > minimum_std)
    return GroupFilter(good[groups.codes], groups.count, int(good.sum()))
