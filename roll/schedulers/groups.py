"""Plays the members of a group, with spare ones in place of those that break or hang."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from roll.env_managers.groups import check_group
from roll.schedulers.tasks import Play, Task
from roll.trajectories.model import Trajectory, TrajectoryGroup

What = TypeVar("What")

GradeGroup = Callable[[Sequence[Trajectory]], Awaitable[None]]
"""Changes the scores of the members of a group."""

OnMember = Callable[[Trajectory, bool], None]
"""Called with every member that is finished, and whether it is a greedy one."""


class RolloutError(RuntimeError):
    """A rollout gave nothing to go on with: every episode failed."""


@dataclass(frozen=True, slots=True)
class Spares:
    """Members beyond the size of a group.

    Which members are trained on is decided by their numbers, never by who finishes first: the sound ones with the
    smallest numbers. A spare takes part only where a member before it broke, so short episodes have no advantage and
    the lengths trained on are distributed as those sampled.

    Attributes:
        count: Spare members per group (``group_size_redundancy``).
        straggler_seconds: How long members may go on after as many sound ones as the group needs are finished; those
            that take longer make room for spares. This *does* leave out long episodes, so it is for environments that
            hang, and to be set far above what an honest episode takes. ``None`` waits for all.
    """

    count: int = 0
    straggler_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"group_size_redundancy={self.count}: must be at least 0")
        if self.straggler_seconds is not None and not self.straggler_seconds > 0:
            raise ValueError(f"straggler_seconds={self.straggler_seconds}: must be greater than 0, or None to wait")


class GroupPlayer(Generic[What]):
    """Plays all members of a task at the same time.

    Args:
        play: Plays one member.
        with_baselines: Whether each group has a greedy member, whose score is its ``baseline``; its number comes after
            all others.
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
        """Play the members of one task.

        Returns:
            As many as the task says, by number: the sound ones with the smallest numbers. Where too few are sound,
            broken ones, which have an error status, make up the number. Of games that the policy plays against itself
            as many for each seat, seat after seat.

        Raises:
            GroupMismatchError: If they started from different observations.
            Exception: What ``play`` raises first; the other members are cancelled.
        """
        last = task.size + self._spares.count
        members = [asyncio.ensure_future(self._play(task, number, False)) for number in range(last)]
        greedy = [asyncio.ensure_future(self._play(task, last, True))] if self._with_baselines else []
        started: list[asyncio.Future[Any]] = [*members, *greedy]
        if self._on_member is not None:
            for member in started:
                member.add_done_callback(partial(_tell, self._on_member, member in greedy))
        try:
            if self._spares.count:
                choosing = asyncio.ensure_future(self._choose(members, task.size))
                started.append(choosing)
                await asyncio.gather(choosing, *greedy)
                played = choosing.result()
            else:
                await asyncio.gather(*members, *greedy)
                played = [member.result() for member in members]
        finally:
            await cancel(started)
        seats = _by_seat(played)
        for members_of_seat in seats:
            check_group(member for member in members_of_seat if not member.status.is_error)
            if self._grade is not None:
                await self._grade(members_of_seat)
        baseline = _baseline(greedy[0].result()) if greedy and len(seats) == 1 else None
        everybody = [member for members_of_seat in seats for member in members_of_seat]
        return TrajectoryGroup(task.group_id, task.tag, everybody, domain=task.domain, baseline=baseline)

    async def _choose(self, tasks: Sequence[asyncio.Future[Trajectory]], size: int) -> list[Trajectory]:
        """Wait until it is clear which members make up the group."""
        patience, counts = self._spares.straggler_seconds, self.member_counts
        clock, until = asyncio.get_running_loop().time, None
        while True:
            chosen = _sound(tasks, size, wait_for_earlier=True)
            running = [task for task in tasks if not task.done()]
            if len(chosen) == size:
                counts["replaced"] += sum(member.episode >= size for member in chosen)
                return chosen
            if not running:
                break
            finished = _sound(tasks, size, wait_for_earlier=False)
            if len(finished) == size and patience is not None:
                until = until or clock() + patience
                if clock() >= until:
                    counts["stragglers"] += sum(not task.done() for task in tasks[: finished[-1].episode])
                    return finished
            left = None if until is None else until - clock()
            await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        broken = [task.result() for task in tasks if task.result().status.is_error]
        return sorted(chosen + broken[: size - len(chosen)], key=lambda member: member.episode)


def _by_seat(played: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Return the members of each seat that a policy had in the games."""
    games = [[member, *member.beside] for member in played]
    for member in played:
        member.beside = []
    # A game that could not begin has one member, whatever others have.
    most = max(map(len, games), default=0)
    return [[game[seat] for game in games if seat < len(game)] for seat in range(most)]


def _sound(tasks: Iterable[asyncio.Future[Trajectory]], size: int, wait_for_earlier: bool) -> list[Trajectory]:
    """Return the sound members with the smallest numbers; with ``wait_for_earlier`` only those before the first gap."""
    found: list[Trajectory] = []
    for task in tasks:
        if len(found) == size:
            break
        if task.done():
            member = task.result()
            found += [] if member.status.is_error else [member]
        elif wait_for_earlier:
            break
    return found


def _baseline(greedy: Trajectory) -> float | None:
    """Return the score of a greedy member; what one that broke earned until then is not what the policy earns."""
    return None if greedy.status.is_error else greedy.score


def _tell(on_member: OnMember, greedy: bool, member: asyncio.Future[Trajectory]) -> None:
    if not member.cancelled() and member.exception() is None:
        on_member(member.result(), greedy)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Stop tasks that are no longer needed and wait until they are gone; finished ones are left alone."""
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)


def require_some(groups: Sequence[TrajectoryGroup]) -> None:
    """Check that not every member of every group broke.

    Raises:
        RolloutError: If so; the message holds the first error.
    """
    everything = [member for group in groups for member in group.trajectories]
    if everything and all(member.status.is_error for member in everything):
        raise RolloutError(f"Every one of the {len(everything)} episodes failed. The first: {everything[0].error}")
