"""What is kept of the episodes of a step: trajectories as files, review pages, and a word on those that broke."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from roll.config import RLConfig
from roll.tracking import Progress
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.store import Phase, trajectory_path, write_trajectories

PAGES_PER_EVALUATION = 16


def report_failures(progress: Progress, groups: Sequence[TrajectoryGroup], where: str) -> None:
    """Say how many episodes broke, and why the first of them did."""
    everything = list(all_trajectories(groups))
    failed = [trajectory for trajectory in everything if trajectory.status.is_error]
    if failed:
        first = " ".join(str(failed[0].error).split())
        progress.warning(f"{where}: {len(failed)} of {len(everything)} episodes failed. The first: {first}")


def store(config: RLConfig, groups: Sequence[TrajectoryGroup], step: int, phase: Phase) -> None:
    """Write the trajectories of a step as parquet, where that is due."""
    every = config.trajectory_dump_steps
    if every and (phase == "val" or step % every == 0):
        path = trajectory_path(config.output_dir, step, phase)
        write_trajectories(path, list(all_trajectories(groups)), step=step, phase=phase, run=config.exp_name)


def shown_episodes(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """Return the episodes that get a review page; where there are many groups, one each of some, always the same."""
    if len(groups) < PAGES_PER_EVALUATION:
        return list(all_trajectories(groups))[:PAGES_PER_EVALUATION]
    # Drawn, not every n-th one: difficulties may come round in turn.
    chosen = sorted(random.Random(0).sample(range(len(groups)), PAGES_PER_EVALUATION))
    return [groups[index].trajectories[0] for index in chosen]


def all_trajectories(groups: Sequence[TrajectoryGroup]) -> Iterator[Trajectory]:
    """Yield every trajectory of every group."""
    for group in groups:
        yield from group.trajectories
