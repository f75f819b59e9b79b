"""Collects the groups of trajectories of one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from roll.env_managers.groups import check_group
from roll.env_managers.records import EpisodeSpec
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import env_seed
from roll.schedulers.generation import GenerationScheduler
from roll.trajectories.model import Trajectory, TrajectoryGroup

OnProgress = Callable[[int, int], None]
"""Called with (finished, all) episodes."""


class RolloutError(RuntimeError):
    """A rollout gave nothing to go on with: every episode failed."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One group to roll out: which tag, under which name and seed, and how many members."""

    tag: str
    group_id: str
    seed: int
    size: int


class RolloutScheduler:
    """Runs every group of a step and returns them in the order they were asked for, whoever finishes first.

    Synchronous: a step's episodes all start together and all end before the next step.

    Args:
        managers: The env manager of each tag.
        make_env: The environment factory of each tag.
        generation: Told when a trajectory is over, so that its prefix can be forgotten.
        run_seed: Seed of the run; keys levels and sampling noise.
        greedy: The env manager of each tag that plays greedily: gives each group a ``baseline``. ``None`` for groups
            without.
    """

    def __init__(
        self,
        managers: Mapping[str, TrajectoryEnvManager],
        make_env: Mapping[str, Callable[[], Any]],
        generation: GenerationScheduler,
        run_seed: int,
        greedy: Mapping[str, TrajectoryEnvManager] | None = None,
    ) -> None:
        self._managers = managers
        self._make_env = make_env
        self._generation = generation
        self._run_seed = run_seed
        self._greedy = greedy

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

        async def play(spec: GroupSpec, episode: int) -> Trajectory:
            nonlocal finished
            is_baseline = episode == spec.size
            trajectory = await self._play(spec, episode, self._greedy if is_baseline else None)
            finished += not is_baseline
            if on_progress is not None:
                on_progress(finished, total)
            return trajectory

        extra = 0 if self._greedy is None else 1

        running: list[list[asyncio.Task[Trajectory]]] = []
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [[tasks.create_task(play(spec, k)) for k in range(spec.size + extra)] for spec in specs]
        except ExceptionGroup as failures:
            # The first failure cancelled the other episodes; the caller is to see it as it was raised.
            failure = failures.exceptions[0]
        if failure is not None:
            raise failure
        groups = [
            _group(spec, [task.result() for task in members]) for spec, members in zip(specs, running, strict=True)
        ]
        _check(groups)
        return groups

    async def _play(
        self, spec: GroupSpec, episode: int, managers: Mapping[str, TrajectoryEnvManager] | None = None
    ) -> Trajectory:
        manager = (managers or self._managers)[spec.tag]
        what = EpisodeSpec(spec.tag, spec.group_id, episode, spec.seed, self._run_seed)
        try:
            return await manager.run(what, self._make_env[spec.tag])
        finally:
            await self._generation.release(what.trajectory_id)


def _group(spec: GroupSpec, played: list[Trajectory]) -> TrajectoryGroup:
    """Return the group of a spec; an episode beyond its size is the greedy one."""
    greedy = played[spec.size :]
    baseline = greedy[0].score if greedy and not greedy[0].status.is_error else None
    return TrajectoryGroup(spec.group_id, spec.tag, played[: spec.size], baseline=baseline)


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
    numbered: Iterator[tuple[int, str]] = enumerate((tag for tag, count in groups for _ in range(count)), start=first)
    named = partial("{}{:07d}".format, prefix)
    return [GroupSpec(tag, named(n), env_seed(run_seed, tag, offset + n, 0), size) for n, tag in numbered]


def _check(groups: list[TrajectoryGroup]) -> None:
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [trajectory for trajectory in everything if trajectory.status.is_error]
    if everything and len(failed) == len(everything):
        raise RolloutError(f"Every one of the {len(failed)} episodes failed. The first: {failed[0].error}")
    for group in groups:
        check_group(t for t in group.trajectories if not t.status.is_error)
