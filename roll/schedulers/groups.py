"""Collects the groups of trajectories of one step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from roll.env_managers.groups import check_group
from roll.env_managers.records import EpisodeSpec
from roll.envs import env_seed
from roll.schedulers.members import Spares, play_group
from roll.trajectories.model import Trajectory, TrajectoryGroup

OnProgress = Callable[[int, int], None]
"""Called with (finished, all) episodes."""


class RolloutError(RuntimeError):
    """A rollout gave nothing to go on with: every episode failed."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One group to roll out: which tag, under which name and seed, how many members, and its number in the run."""

    tag: str
    group_id: str
    seed: int
    size: int
    number: int = 0


class PlayEpisode(Protocol):
    """Plays one episode, here or in another process; whoever plays it also releases its session."""

    def __call__(self, spec: EpisodeSpec, greedy: bool, /) -> Awaitable[Trajectory]:
        """Play the episode to its end, greedily if so asked."""
        ...


class RolloutScheduler:
    """Runs every group of a step and returns them in the order they were asked for, whoever finishes first.

    Args:
        play: Plays one episode.
        run_seed: Seed of the run; keys levels and sampling noise.
        with_baselines: Whether each group has a greedy member, whose score is its ``baseline``.
        spares: Members beyond the size of a group, in place of those that break.

    Attributes:
        member_counts: Members so far that were ``replaced`` by spares because they broke, and ``stragglers`` given up.
    """

    def __init__(
        self,
        *,
        play: PlayEpisode,
        run_seed: int,
        with_baselines: bool = False,
        spares: Spares | None = None,
    ) -> None:
        self._play = play
        self._run_seed = run_seed
        self._with_baselines = with_baselines
        self._spares = spares or Spares()
        self.member_counts: Counter[str] = Counter()

    async def collect(self, specs: list[GroupSpec], on_progress: OnProgress | None = None) -> list[TrajectoryGroup]:
        """Run all episodes of ``specs`` concurrently.

        An episode whose environment fails is returned with its error status and the others go on. An engine that fails
        ends the rollout: the other episodes are cancelled and its exception comes out unchanged.

        Args:
            specs: The groups of the step.
            on_progress: Told after every episode.

        Returns:
            One group per spec, in order; members in order of their episode number.

        Raises:
            RolloutError: If every episode failed; the message holds the first error.
            GroupMismatchError: If members of a group started from different observations.
        """
        finished = 0
        total = sum(spec.size for spec in specs)

        def count(is_baseline: bool) -> None:
            nonlocal finished
            finished += not is_baseline
            if on_progress is not None:
                on_progress(min(finished, total), total)

        running: list[asyncio.Task[TrajectoryGroup]] = []
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._group(spec, count)) for spec in specs]
        except ExceptionGroup as failures:
            # The first failure cancelled the other episodes; the caller is to see it as it was raised.
            failure = failures.exceptions[0]
        if failure is not None:
            raise failure
        groups = [task.result() for task in running]
        _check(groups)
        return groups

    async def run_group(self, spec: GroupSpec) -> TrajectoryGroup:
        """Run the episodes of one group; episodes that fail are returned with their error status.

        Raises:
            GroupMismatchError: If its members started from different observations.
        """
        group = await self._group(spec, lambda is_baseline: None)
        _check_members(group)
        return group

    async def _group(self, spec: GroupSpec, count: Callable[[bool], None]) -> TrajectoryGroup:
        async def play(episode: int, is_greedy: bool) -> Trajectory:
            what = EpisodeSpec(spec.tag, spec.group_id, episode, spec.seed, self._run_seed, priority=spec.number)
            trajectory = await self._play(what, is_greedy)
            count(is_greedy)
            return trajectory

        played = await play_group(play, spec.size, self._spares, self._with_baselines, self.member_counts)
        return TrajectoryGroup(spec.group_id, spec.tag, played.members, baseline=played.baseline)


def group_specs(
    groups: list[tuple[str, int]], size: int, run_seed: int, prefix: str, first: int = 0, offset: int = 0
) -> list[GroupSpec]:
    """Return the groups of one step.

    Args:
        groups: Number of groups of each tag.
        size: Members per group.
        run_seed: Seed of the run.
        prefix: Start of every group id; with the group's number it is unique within the run.
        first: Number of the first group: steps count on, so that every step has levels of its own.
        offset: Added to the number for the seed: keeps evaluation levels apart from training levels.
    """
    tags = [tag for tag, count in groups for _ in range(count)]
    return [_spec(tag, number, size, run_seed, prefix, offset) for number, tag in enumerate(tags, start=first)]


def endless_specs(
    groups: list[tuple[str, int]], size: int, run_seed: int, prefix: str
) -> dict[str, Callable[[int], GroupSpec]]:
    """Return for each tag the group of each number: its n-th group of the run, for streams that never end.

    The first groups are those that :func:`group_specs` gives steps with these counts, under the same names.
    """
    per_step = sum(count for _, count in groups)

    def source(tag: str, begin: int, count: int) -> Callable[[int], GroupSpec]:
        def spec(number: int) -> GroupSpec:
            step, index = divmod(number, count)
            return _spec(tag, step * per_step + begin + index, size, run_seed, prefix, 0)

        return spec

    begins = list(accumulate((count for _, count in groups), initial=0))
    return {tag: source(tag, begin, count) for (tag, count), begin in zip(groups, begins, strict=False)}


def _spec(tag: str, number: int, size: int, run_seed: int, prefix: str, offset: int) -> GroupSpec:
    return GroupSpec(tag, f"{prefix}{number:07d}", env_seed(run_seed, tag, offset + number, 0), size, number)


def _check(groups: list[TrajectoryGroup]) -> None:
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [trajectory for trajectory in everything if trajectory.status.is_error]
    if everything and len(failed) == len(everything):
        raise RolloutError(f"Every one of the {len(failed)} episodes failed. The first: {failed[0].error}")
    for group in groups:
        _check_members(group)


def _check_members(group: TrajectoryGroup) -> None:
    check_group(member for member in group.trajectories if not member.status.is_error)
