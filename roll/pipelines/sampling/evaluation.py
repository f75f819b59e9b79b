"""Plays every task of a list once, showing progress: what evaluations sample."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from roll.pipelines.reporting.sample import sample_of
from roll.schedulers.group_stream import play_all
from roll.schedulers.groups import GroupPlayer
from roll.schedulers.tasks import Play, Task
from roll.tracking import Progress
from roll.trajectories.model import Trajectory, TrajectoryGroup

What = TypeVar("What")


async def sample_all(
    tasks: Sequence[Task[What]],
    play: Play[What],
    progress: Progress,
    *,
    at_a_time: int | None = None,
) -> list[TrajectoryGroup]:
    """Play every task.

    Args:
        tasks: What to play.
        play: Plays one member of a group.
        progress: Told after every member.
        at_a_time: Groups under way at the same time; ``None`` for all.

    Returns:
        One group per task, in order; those whose members broke are among them.
    """
    done, tokens, total = 0, 0, sum(task.size for task in tasks)

    def show(member: Trajectory, greedy: bool) -> None:
        nonlocal done, tokens
        done, tokens = done + 1, tokens + sum(each.completion_tokens for each in (member, *member.beside))
        progress.rollout_progress(done, total, tokens)
        progress.sample(partial(sample_of, member))

    return await play_all(tasks, GroupPlayer(play, on_member=show).play_group, at_a_time)
