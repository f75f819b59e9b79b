"""When a run that explores takes new weights from the run that learns, and when it waits for them.

Where weights travel through checkpoints, both find each other in the folder of the run that learns: its checkpoints,
and ``sync_requests``, where an explorer that sets the pace asks for one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from roll.common.disk import replace_text
from roll.config.experience_sync import SyncConfig
from roll.runs.layout import CHECKPOINTS, list_checkpoints
from roll.runs.outcome import State, state_of
from roll.schedulers.groups import RolloutError

REQUESTS: Final = "sync_requests"
"""Folder of what explorers ask for: a file each, with the number of the request, and beside it the answer."""

_ANSWER: Final = ".answer"
_LOOK_EVERY: Final = 0.2

Found = tuple[int, Path]
"""Step and folder of a checkpoint."""


def due_version(config: SyncConfig, step: int) -> int:
    """Return the version that a step of an explorer samples with, where both keep step (``fixed``).

    Explorer and trainer synchronise every ``interval`` steps, the explorer ``offset`` steps ahead. What is sampled in a
    step and learned from in the same step of the trainer is ``offset + interval - 1`` versions behind at most.
    """
    return max(0, (step - 1 - config.offset) // config.interval * config.interval)


def explorer_name(writer: str | None) -> str:
    """Return the name of an explorer among others that follow one run."""
    return (writer or "explorer").replace("/", "-")


def newest(folder: Path, version: int) -> Found | None:
    """Return the newest checkpoint of the run of a folder; ``None`` where its weights are not newer than a version."""
    found = list_checkpoints(folder / CHECKPOINTS)
    return found[-1] if found and found[-1][0] > version else None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the run that learns has to offer at a moment.

    Attributes:
        versions: Versions of the weights that are there, ascending.
        is_over: Whether it had ended before they were looked for.
        begun_at: The step that it went on from. An older version that is not there will not come.
    """

    versions: tuple[int, ...]
    is_over: bool
    begun_at: int = 0


class Versions(Protocol):
    """Where an explorer finds the weights of the run that learns."""

    def look(self) -> Seen:
        """Return what is there."""
        ...

    def ask(self, step: int) -> None:
        """Ask for the weights of now, before a step of the explorer; asking again changes nothing."""
        ...

    def is_answered(self, step: int) -> bool:
        """Whether the weights of the moment of that request are there."""
        ...

    @property
    def origin(self) -> str:
        """Who is waited for, in an error."""
        ...

    @property
    def how_to_keep_more(self) -> str:
        """What to do where a version is gone that is needed."""
        ...


class CheckpointVersions:
    """The checkpoints of another run.

    Args:
        folder: Its folder.
        writer: Name of this explorer among others.
    """

    def __init__(self, folder: Path, writer: str | None) -> None:
        self._folder = folder
        self._request = folder / REQUESTS / explorer_name(writer)

    def look(self) -> Seen:
        """Return which checkpoints there are."""
        is_over = state_of(self._folder) is State.FINISHED  # before the look: the last may come in between
        return Seen(tuple(step for step, _ in list_checkpoints(self._folder / CHECKPOINTS)), is_over)

    def ask(self, step: int) -> None:
        """Ask for a checkpoint of the weights of now."""
        self._request.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self._request, str(step))

    def is_answered(self, step: int) -> bool:
        """Whether there is a checkpoint of them."""
        return _is_answered(self._request)

    @property
    def origin(self) -> str:
        """The run."""
        return f"the run of {self._folder}"

    @property
    def how_to_keep_more(self) -> str:
        """What to do where a checkpoint is gone that is needed."""
        return "raise checkpoint_config.keep of the run that learns, and let both have the same experience.sync"


class Synchronizer:
    """Says which weights a step of an explorer samples with.

    Args:
        config: The style; ``None`` takes the newest that there are.
        versions: Where they are.
        clock: Seconds.
    """

    def __init__(
        self, config: SyncConfig | None, versions: Versions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._versions = versions
        self._clock = clock

    async def before(self, step: int, version: int) -> int | None:
        """Return the version to take before a step, once it is there; ``None`` to go on with ``version``.

        Raises:
            RolloutError: It does not come in time, or was removed.
        """
        config = self._config
        if config is None or config.style == "dynamic_by_trainer":
            return self._newest(version)
        if config.style == "fixed":
            due = due_version(config, step)
            return None if due <= version else await self._of(due, version)
        if step == 1 or (step - 1) % config.interval:
            return None
        await self._asked_for(step)
        return self._newest(version)

    def _newest(self, version: int) -> int | None:
        found = self._versions.look().versions
        return found[-1] if found and found[-1] > version else None

    async def _of(self, step: int, version: int) -> int | None:
        """Wait for the weights of a step; of a run that ended before it, take the last ones."""
        until = self._deadline()
        while True:
            seen = self._versions.look()
            if step in seen.versions:
                return step
            if any(other > step for other in (*seen.versions, seen.begun_at)):
                raise RolloutError(
                    f"{self._versions.origin} has no weights of step {step} any more: {self._versions.how_to_keep_more}"
                )
            if seen.is_over:
                return self._newest(version)
            await self._wait(until, f"the weights of step {step}")

    async def _asked_for(self, step: int) -> None:
        """Ask for the weights of now, and wait until the run that learns says that they are there."""
        self._versions.ask(step)
        until = self._deadline()
        while not (self._versions.look().is_over or self._versions.is_answered(step)):
            await self._wait(until, "the weights that it asked for")

    def _deadline(self) -> float | None:
        assert self._config is not None
        return None if self._config.timeout is None else self._clock() + self._config.timeout

    async def _wait(self, until: float | None, what: str) -> None:
        if until is not None and self._clock() > until:
            assert self._config is not None
            raise RolloutError(
                f"{self._versions.origin} has not written {what} within experience.sync.timeout="
                f"{self._config.timeout:g} s. Start it, or look at what it does; then continue this one"
            )
        await asyncio.sleep(_LOOK_EVERY)


class SyncRequests:
    """What explorers ask of the run that learns.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / REQUESTS

    def pending(self) -> list[Path]:
        """Return the requests that have no answer yet."""
        found = [path for path in sorted(self._folder.glob("[!.]*")) if path.suffix != _ANSWER]
        return [path for path in found if not _is_answered(path)]

    def answer(self, requests: list[Path]) -> None:
        """Say that there is a checkpoint of the weights of now."""
        for path in requests:
            replace_text(_answer(path), path.read_text("utf-8"))


def _answer(request: Path) -> Path:
    return request.with_name(f"{request.name}{_ANSWER}")


def _is_answered(request: Path) -> bool:
    answer = _answer(request)
    return answer.exists() and answer.read_text("utf-8") == request.read_text("utf-8")
