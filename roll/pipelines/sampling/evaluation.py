"""Plays every task of a list once, showing progress: what evaluations sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from roll.schedulers.group_stream import play_all
from roll.schedulers.groups import GroupPlayer
from roll.schedulers.tasks import Play, Task
from roll.tracking import Progress
from roll.trajectories.model import TrajectoryGroup

What = TypeVar("What")


async def sample_all(
    tasks: Sequence[Task[What]],
    play: Play[What],
    progress: Progress,
    *,
    at_a_time: int | None = None,
    sampled_tokens: Callable[[], int] = lambda: 0,
) -> list[TrajectoryGroup]:
    """Play every task.

    Args:
        tasks: What to play.
        play: Plays one member of a group.
        progress: Told after every member.
        at_a_time: Groups under way at the same time; ``None`` for all.
        sampled_tokens: Says how many tokens were sampled so far.

    Returns:
        One group per task, in order; those whose members broke are among them.
    """
    before, done, total = sampled_tokens(), 0, sum(task.size for task in tasks)

    def show() -> None:
        nonlocal done
        done += 1
        progress.rollout_progress(done, total, sampled_tokens() - before)

    return await play_all(tasks, GroupPlayer(play, on_member=show).play_group, at_a_time)
