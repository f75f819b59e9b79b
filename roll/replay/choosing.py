"""Stored episodes by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet

from roll.config import ConfigError, Problem
from roll.runs.stored import StoredRun
from roll.trajectories.model import Trajectory
from roll.trajectories.store import Origin, Phase, read_origin, read_trajectories


@dataclass(frozen=True, slots=True)
class Chosen:
    """Episodes of one step or evaluation.

    Attributes:
        run: Whose.
        origin: Of which step or evaluation.
        everything: All that are stored of it.
        episodes: Those that were asked for.
    """

    run: StoredRun
    origin: Origin
    everything: list[Trajectory]
    episodes: list[Trajectory]

    @property
    def place(self) -> str:
        """Which step or evaluation, for people."""
        return f"{'step' if self.origin.phase == 'train' else 'evaluation after step'} {self.origin.step}"


def name_of(trajectory: Trajectory) -> str:
    """Return the name by which an episode is asked for: ``train-0000012/3``."""
    return f"{trajectory.group_id}/{trajectory.episode}"


def choose(run: StoredRun, name: str | None = None, step: int | None = None, phase: Phase | None = None) -> Chosen:
    """Return stored episodes of a run.

    Args:
        run: The run.
        name: An episode (``train-0000012/3``) or a group (``train-0000012``); ``None`` for all of a step.
        step: Of this step or evaluation; ``None`` for the newest that has it.
        phase: ``train`` or ``val``; ``None`` for whichever has it, of all of a step ``train`` where there is one.

    Raises:
        ConfigError: Nothing of that name is stored; the message says what there is. Or it is a seat of a game with
            several, whose other players are not stored.
    """
    files = run.trajectory_files(step, phase)
    if not files:
        run.episodes(step, phase)  # says which there are
    for file in _newest_first(files, step):
        if name is None:
            found = _with_one_player(read_trajectories(file))
            return Chosen(run, read_origin(file), found, found)
        if _has(file, name):
            stored = _with_one_player(read_trajectories(file))
            return Chosen(run, read_origin(file), stored, [each for each in stored if name in _names(each)])
    raise ConfigError([_missing(str(name), files)])


def _with_one_player(stored: list[Trajectory]) -> list[Trajectory]:
    seated = next((each for each in stored if each.seat), None)
    if seated is not None:
        message = f"{name_of(seated)} is seat {seated.seat} of a game with several, whose other players are not stored."
        fix = "look at it with roll view; only episodes of one player are played again."
        raise ConfigError([Problem("trajectory", message, fix, name_of(seated))])
    return stored


def _newest_first(files: list[Path], step: int | None) -> list[Path]:
    """Return files of steps before those of evaluations, each kind from the newest."""
    return sorted(files, key=lambda file: (file.name.startswith("step"), file.name), reverse=True)


def _names(trajectory: Trajectory) -> tuple[str, str]:
    return trajectory.group_id, name_of(trajectory)


def _stored_names(file: Path) -> Iterator[tuple[str, str]]:
    columns = pyarrow.parquet.read_table(file, columns=["group_id", "episode"]).to_pydict()
    for group, episode in zip(columns["group_id"], columns["episode"], strict=True):
        yield group, f"{group}/{episode}"


def _has(file: Path, name: str) -> bool:
    return any(name in names for names in _stored_names(file))


def _missing(name: str, files: list[Path]) -> Problem:
    first = next(iter(_stored_names(files[0])), ("", "none"))[1]
    where = ", ".join(file.stem for file in files[:6]) + (", …" if len(files) > 6 else "")
    fix = f"names look like {first}; roll view --text lists them. A run stores every trajectory_dump_steps-th step."
    return Problem("trajectory", f"no episode or group of this name in {where}.", fix, name)
