"""Which groups of a step are trained on where groups without variance are replaced by further levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from roll.algorithms.filters import zero_variance_filter
from roll.trajectories.model import TrajectoryGroup


class GroupSearch:
    """Collects groups, round by round, until every tag has as many as are wanted.

    Rounds are complete before the next one begins and groups are taken in the order of their numbers, so short
    episodes have no advantage and the same seed gives the same groups.

    Args:
        wanted: Groups of each tag.
        most: Groups to try in all; ``None`` takes every group of the first round as it is.
    """

    def __init__(self, wanted: Sequence[tuple[str, int]], most: int | None) -> None:
        self._wanted = list(wanted)
        self._most = most
        self._played: list[TrajectoryGroup] = []
        self._kept: list[TrajectoryGroup] = []
        self._begun = False

    def missing(self) -> list[tuple[str, int]]:
        """Return how many groups of each tag to play next; nothing when the search is over."""
        if not self._begun:
            return self._wanted
        if self._most is None:
            return []
        kept = Counter(group.tag for group in self._kept)
        room = self._most - len(self._played)
        rest = []
        for tag, count in self._wanted:
            more = min(count - kept[tag], room)
            room -= more
            if more > 0:
                rest.append((tag, more))
        return rest

    def add(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Take note of a round."""
        self._begun = True
        self._played += groups
        self._kept += [group for group in groups if self._most is None or has_variance(group)]

    def groups(self) -> list[TrajectoryGroup]:
        """Return what the step trains on; the groups of the first round if none has variance."""
        return self._kept or self._played[: sum(count for _, count in self._wanted)]

    @property
    def warning(self) -> str:
        """What is wrong with the outcome, empty if it is what was asked for."""
        wanted = sum(count for _, count in self._wanted)
        if not self._kept:
            return (
                f"in none of {len(self._played)} groups do scores differ, so it trains on unfiltered ones. The levels "
                "are all too easy or too hard for the policy."
            )
        if len(self._kept) < wanted:
            return (
                f"in only {len(self._kept)} of {len(self._played)} groups do scores differ; "
                "dynamic_sampling.max_batches bounds how many are tried."
            )
        return ""

    def metrics(self) -> dict[str, float]:
        """Return how many groups were replaced; nothing where none can be."""
        return {} if self._most is None else {"rollout/groups_filtered": float(len(self._played) - len(self._kept))}


def has_variance(group: TrajectoryGroup) -> bool:
    """Whether the scores of a group differ."""
    scores = torch.tensor(group.scores)
    return bool(len(scores)) and zero_variance_filter(scores, [0] * len(scores)).kept == 1
