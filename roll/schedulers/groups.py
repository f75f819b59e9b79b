"""Plays the members of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from roll.env_managers.groups import check_group
from roll.schedulers.members import OnMember, Spares, play_group
from roll.schedulers.tasks import Play, Task
from roll.trajectories.model import Trajectory, TrajectoryGroup

What = TypeVar("What")

GradeGroup = Callable[[Sequence[Trajectory]], Awaitable[None]]
"""Changes the scores of the members of a group."""


class RolloutError(RuntimeError):
    """A rollout gave nothing to go on with: every episode failed."""


class GroupPlayer(Generic[What]):
    """Plays all members of a task at the same time.

    Args:
        play: Plays one member.
        with_baselines: Whether each group has a greedy member, whose score is its ``baseline``.
        spares: Members beyond the size of a group, in place of those that break.
        on_member: Told after every member.
        grade: Compares the members of a group, and changes their scores.

    Attributes:
        member_counts: Members so far that were ``replaced`` by spares because they broke, and ``stragglers`` given up.
    """

    def __init__(
        self,
        play: Play[What],
        *,
        with_baselines: bool = False,
        spares: Spares | None = None,
        on_member: OnMember | None = None,
        grade: GradeGroup | None = None,
    ) -> None:
        self._play = play
        self._with_baselines = with_baselines
        self._spares = spares or Spares()
        self._on_member = on_member
        self._grade = grade
        self.member_counts: Counter[str] = Counter()

    async def play_group(self, task: Task[What]) -> TrajectoryGroup:
        """Play the members of one task; those that break are returned with their error status.

        Raises:
            GroupMismatchError: If they started from different observations.
        """
        played = await play_group(
            partial(self._play, task),
            task.size,
            self._spares,
            self._with_baselines,
            self.member_counts,
            self._on_member,
        )
        check_group(member for member in played.members if not member.status.is_error)
        if self._grade is not None:
            await self._grade(played.members)
        return TrajectoryGroup(task.group_id, task.tag, played.members, domain=task.domain, baseline=played.baseline)


def require_some(groups: Sequence[TrajectoryGroup]) -> None:
    """Check that not every member of every group broke.

    Raises:
        RolloutError: If so; the message holds the first error.
    """
    everything = [member for group in groups for member in group.trajectories]
    if everything and all(member.status.is_error for member in everything):
        raise RolloutError(f"Every one of the {len(everything)} episodes failed. The first: {everything[0].error}")
