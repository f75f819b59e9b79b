"""Success and score of episodes, with the error of each estimate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from roll.trajectories.model import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over levels or problems.

    Attributes:
        mean: Of the means of all groups; attempts at the same level are a group.
        standard_error: Of the mean, from the spread of the groups, which are independent; of fewer than 2 not a number.
        episodes: How many were counted.
    """

    mean: float
    standard_error: float
    episodes: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]]) -> Estimate:
        """Return the estimate from the numbers of each group; empty groups are left out."""
        means = [fmean(group) for group in groups if group]
        if not means:
            return cls(math.nan, math.nan, 0)
        mean, count = fmean(means), len(means)
        spread = sum((value - mean) ** 2 for value in means)
        error = math.sqrt(spread / (count * (count - 1))) if count > 1 else math.nan
        return cls(mean, error, sum(map(len, groups)))

    def to_json(self) -> dict[str, float | int | None]:
        """Return it as JSON; what is not a number becomes ``null``."""
        mean, error = (value if math.isfinite(value) else None for value in (self.mean, self.standard_error))
        return {"mean": mean, "standard_error": error, "episodes": self.episodes}

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.standard_error:.3f} ({self.episodes} episodes)"


@dataclass(frozen=True, slots=True)
class Figures:
    """What a policy reached in one way of drawing tokens.

    Attributes:
        success: Share of episodes that succeeded.
        score: Score of an episode.
        errors: Episodes that broke, which the other figures leave out.
        by_tag: Success for each environment tag or source of problems.
        groups: The trajectories.
    """

    success: Estimate
    score: Estimate
    errors: int
    by_tag: Mapping[str, Estimate]
    groups: Sequence[TrajectoryGroup] = field(repr=False)

    @classmethod
    def of(cls, groups: Sequence[TrajectoryGroup]) -> Figures:
        """Describe what was played."""
        sound = [[member for member in group.trajectories if not member.status.is_error] for group in groups]
        by_tag: dict[str, list[list[float]]] = defaultdict(list)
        for members in sound:
            if members:
                by_tag[members[0].tag].append([float(member.success) for member in members])
        return cls(
            success=Estimate.of([[float(member.success) for member in members] for members in sound]),
            score=Estimate.of([[member.score or 0.0 for member in members] for members in sound]),
            errors=sum(len(group.trajectories) for group in groups) - sum(map(len, sound)),
            by_tag={tag: Estimate.of(values) for tag, values in by_tag.items()},
            groups=groups,
        )

    @property
    def broken(self) -> str | None:
        """Why the first of those episodes broke that did, ``None`` where none did."""
        members = (member for group in self.groups for member in group.trajectories)
        return next((str(member.error) for member in members if member.status.is_error), None)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON, without the trajectories."""
        return {
            "success": self.success.to_json(),
            "score": self.score.to_json(),
            "errors": self.errors,
            "by_tag": {tag: estimate.to_json() for tag, estimate in self.by_tag.items()},
        }
