"""What is kept of the episodes of a step: trajectories as files, a review, and a word on those that broke."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from roll.config import RunConfig, SamplingConfig
from roll.runs.layout import RECORD
from roll.tracking import Progress
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.store import Phase, trajectory_path, write_trajectories

REVIEW: Final = "index.html"
EPISODES_SHOWN: Final = 16
"""Episodes of an evaluation that a review shows."""
_NEWEST: Final = 3
"""Evaluations whose episodes it shows, beside those of the first."""


def report_failures(progress: Progress, groups: Sequence[TrajectoryGroup], where: str) -> None:
    """Say how many episodes broke, and why the first of them did."""
    everything = list(all_trajectories(groups))
    failed = [trajectory for trajectory in everything if trajectory.status.is_error]
    if failed:
        first = " ".join(str(failed[0].error).split())
        progress.warning(f"{where}: {len(failed)} of {len(everything)} episodes failed. The first: {first}")


def store(
    config: SamplingConfig,
    groups: Sequence[TrajectoryGroup],
    step: int,
    phase: Phase,
    token_text: Callable[[int], str],
    there: Path | None = None,
) -> Path | None:
    """Write the trajectories of a step as parquet, where that is due.

    Args:
        config: Where, and at which steps.
        groups: The groups.
        step: The step.
        phase: What they are for.
        token_text: Gives the text of a token.
        there: A file that has exactly these groups as those of this step already; it is linked, where it can be.

    Returns:
        The file, where one was due.
    """
    if not (config.stores(step) or (phase == "val" and config.trajectory_dump_steps)):
        return None
    path = trajectory_path(config.output_dir, step, phase)
    if there is not None and _is_linked(there, path):
        return path
    trajectories = list(all_trajectories(groups))
    return write_trajectories(path, trajectories, step=step, phase=phase, run=config.exp_name, token_text=token_text)


def _is_linked(file: Path, path: Path) -> bool:
    """Give a file a second name; false where the disk knows no links, or it is another disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.unlink(missing_ok=True)
        os.link(file, path)
    except OSError:
        return False
    return True


def keep_evaluation(
    config: SamplingConfig,
    progress: Progress,
    groups: Sequence[TrajectoryGroup],
    step: int,
    token_text: Callable[[int], str],
) -> None:
    """Say what of an evaluation during a run broke, store its trajectories and write its review."""
    report_failures(progress, groups, f"evaluation after step {step}")
    with progress.stage("eval"):
        write_evaluation(config, groups, step, token_text)


def write_evaluation(
    config: SamplingConfig, groups: Sequence[TrajectoryGroup], step: int, token_text: Callable[[int], str]
) -> None:
    """Store the trajectories of an evaluation during a run, where that is due, and write its review."""
    store(config, groups, step, "val", token_text)
    write_review(config, groups, step, token_text)


def write_review(
    config: RunConfig, groups: Sequence[TrajectoryGroup], step: int, token_text: Callable[[int], str]
) -> Path:
    """Write the review of all evaluations so far as one file, with some episodes of the first and the newest of them.

    Args:
        config: Where the run writes.
        groups: The newest evaluation, which is stored as ``config`` says.
        step: The step after which it was.
        token_text: Gives the text of a token.

    Returns:
        The file.
    """
    if trajectory_path(config.output_dir, step, "val").is_file():
        return _write(config.output_dir, config.render_path / REVIEW, groups)
    with TemporaryDirectory() as folder:  # nothing is stored: the newest evaluation is all that can be shown
        record = config.output_dir / RECORD
        if record.is_file():
            shutil.copy(record, folder)
        trajectories = list(all_trajectories(groups))
        path = trajectory_path(folder, step, "val")
        write_trajectories(path, trajectories, step=step, phase="val", run=config.exp_name, token_text=token_text)
        return _write(Path(folder), config.render_path / REVIEW, groups)


def _write(folder: Path, path: Path, groups: Sequence[TrajectoryGroup]) -> Path:
    # Imported here: it costs a fifth of a second, and a run may never evaluate. One thread: a run may fork.
    from roll.viewer.episodes import Episodes
    from roll.viewer.export import export
    from roll.viewer.filters import Filter
    from roll.viewer.run_folder import RunFolder

    chosen = Filter(phase="val")
    with closing(Episodes(RunFolder(folder.absolute(), "val_step=*.parquet"), threads=1)) as episodes:
        episodes.refresh()
        steps = [number for (number,) in episodes.query("select distinct step from episodes order by step desc")]
        places = [(each.group_id, each.episode) for each in shown_episodes(groups)]
        shown = dict.fromkeys((*steps[:_NEWEST], *steps[-1:]))
        rows = [row for number in shown for row in episodes.find_all("val", number, places)]
        return export(episodes, path, chosen, rows).path


def shown_episodes(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """Return the episodes that a review shows; where there are many groups, one each of some, always the same.

    Levels and prompts are the same in every evaluation, so that before and after can be compared.
    """
    if len(groups) < EPISODES_SHOWN:
        return list(all_trajectories(groups))[:EPISODES_SHOWN]
    # Drawn, not every n-th one: difficulties may come round in turn.
    chosen = sorted(random.Random(0).sample(range(len(groups)), EPISODES_SHOWN))
    return [groups[index].trajectories[0] for index in chosen]


def all_trajectories(groups: Sequence[TrajectoryGroup]) -> Iterator[Trajectory]:
    """Yield every trajectory of every group."""
    for group in groups:
        yield from group.trajectories
