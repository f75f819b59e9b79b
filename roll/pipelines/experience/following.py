"""The checkpoints of another run, or a list of some, one after the other, as they appear."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from roll.pipelines.experience.syncing import Found, newest
from roll.runs.layout import CHECKPOINT_STATE, CHECKPOINTS, list_checkpoints
from roll.runs.outcome import State, state_of
from roll.schedulers.groups import RolloutError

_LOOK_EVERY: Final = 0.5
"""Seconds between two looks at whether there is a new checkpoint."""


class FollowedRun:
    """A run whose checkpoints are evaluated as they appear.

    Args:
        folder: Its ``output_dir``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def checkpoint(self, step: int) -> Path | None:
        """Wait until it is clear whether there is a checkpoint of a step; return it, or ``None`` if there is none.

        A run that was interrupted may go on, and one that is not there yet may begin: both are waited for.

        Raises:
            RolloutError: The run failed before that step.
        """
        while True:
            state = state_of(self._folder)  # before the look: the last checkpoint may come in between
            found = dict(list_checkpoints(self._folder / CHECKPOINTS))
            if step in found:
                return found[step]
            if state is State.FINISHED or any(other > step for other in found):
                return None
            if state is State.FAILED:
                raise RolloutError(
                    f"the run of {self._folder} failed before step {step}. Continue it, and then this one, or evaluate "
                    "what there is with roll eval"
                )
            await asyncio.sleep(_LOOK_EVERY)


async def newer_than(version: int, folder: Path | None) -> Found:
    """Wait for a checkpoint of a run with newer weights than those of a version; return its step and its folder.

    Args:
        version: The version.
        folder: The ``output_dir`` of the run; ``None``: there are never newer ones.
    """
    while True:
        found = None if folder is None else newest(folder, version)
        if found is not None:
            return found
        await asyncio.sleep(_LOOK_EVERY)


class ListedCheckpoints:
    """Folders of checkpoints that are evaluated in their order, each as soon as it is there.

    Args:
        folders: The folders, ``step=000050`` of whatever runs.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    async def checkpoint(self, step: int) -> Path | None:
        """Wait for the checkpoint of this number in the list, from 1; return it, or ``None`` behind the last."""
        if step > len(self._folders):
            return None
        folder = self._folders[step - 1]
        while not (folder / CHECKPOINT_STATE).is_file():
            await asyncio.sleep(_LOOK_EVERY)
        return folder
