"""Levels of environment tags as tasks: each number of a run has a level of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from roll.env_managers.records import EpisodeSpec
from roll.envs import env_seed
from roll.schedulers.tasks import Task, TaskSource
from roll.trajectories.model import Trajectory


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a tag: the seed that all members of the group give their environments."""

    seed: int


class PlayEpisode(Protocol):
    """Plays one episode, here or in another process; whoever plays it also releases its session."""

    def __call__(self, spec: EpisodeSpec, greedy: bool, /) -> Awaitable[Trajectory]:
        """Play the episode to its end, greedily if so asked."""
        ...


class LevelPlay:
    """Plays levels in environments; see :class:`roll.schedulers.tasks.Play`.

    Args:
        play: Plays one episode.
        run_seed: Seed of the run; keys the sampling noise.
    """

    def __init__(self, play: PlayEpisode, run_seed: int) -> None:
        self._play = play
        self._run_seed = run_seed

    def __call__(self, task: Task[Level], episode: int, greedy: bool) -> Awaitable[Trajectory]:
        """Play one episode of a level."""
        spec = EpisodeSpec(task.tag, task.group_id, episode, task.what.seed, self._run_seed, priority=task.number)
        return self._play(spec, greedy)


def level_tasks(
    groups: list[tuple[str, int]], size: int, run_seed: int, prefix: str, first: int = 0, offset: int = 0
) -> list[Task[Level]]:
    """Return the groups of one step or evaluation.

    Args:
        groups: Number of groups of each tag.
        size: Members per group.
        run_seed: Seed of the run.
        prefix: Start of every group id; with the group's number it is unique within the run.
        first: Number of the first group: steps count on, so that every step has levels of its own.
        offset: Added to the number for the seed: keeps evaluation levels apart from training levels.
    """
    tags = [tag for tag, count in groups for _ in range(count)]
    return [_task(tag, number, size, run_seed, prefix, offset) for number, tag in enumerate(tags, start=first)]


def level_sources(groups: list[tuple[str, int]], size: int, run_seed: int, prefix: str) -> dict[str, TaskSource[Level]]:
    """Return for each tag the group of each number: its n-th group of the run, without end.

    The first groups are those that :func:`level_tasks` gives steps with these counts, under the same names.
    """
    per_step = sum(count for _, count in groups)

    def source(tag: str, begin: int, count: int) -> TaskSource[Level]:
        def task(number: int) -> Task[Level]:
            step, index = divmod(number, count)
            return _task(tag, step * per_step + begin + index, size, run_seed, prefix, 0)

        return task

    begins = list(accumulate((count for _, count in groups), initial=0))
    return {tag: source(tag, begin, count) for (tag, count), begin in zip(groups, begins, strict=False)}


def chosen_source(level_at: Callable[[int], tuple[str, int]], size: int, prefix: str) -> TaskSource[Level]:
    """Return the group of each number where something chooses its level: tag and seed, by ``level_at``."""
    return lambda number: _named(*level_at(number), number, size, prefix)


def _task(tag: str, number: int, size: int, run_seed: int, prefix: str, offset: int) -> Task[Level]:
    return _named(tag, env_seed(run_seed, tag, offset + number, 0), number, size, prefix)


def _named(tag: str, seed: int, number: int, size: int, prefix: str) -> Task[Level]:
    return Task(Level(seed), tag, f"{prefix}{number:07d}", size, number)
