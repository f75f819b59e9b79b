"""Groups that wait in a store until a person has looked at them, as the runs at both of its ends see that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from roll.config.experience import ExperienceConfig
from roll.experience.base import StoreCounts
from roll.experience.opened import address_in_ray
from roll.schedulers.groups import RolloutError

_SAY_EVERY: Final = 60.0
"""Seconds between two lines that say how many wait."""


def review_metrics(counts: StoreCounts) -> dict[str, float]:
    """Return how many groups wait for people, and how many they rejected, where there are some."""
    found = {"experience/waiting": float(counts.waiting), "experience/rejected": float(counts.rejected)}
    return found if any(found.values()) else {}


def shown_place(config: ExperienceConfig) -> str:
    """Return where a store is, without the name and password that an address may have."""
    path = config.path
    if config.type == "ray":
        return f"{config.name} in the Ray cluster"
    return path.rpartition("@")[2] if isinstance(path, str) else str(path)


def command_for(config: ExperienceConfig) -> str:
    """Return what a person calls to look at the groups that wait."""
    if config.type == "ray":
        address = address_in_ray(str(config.name), config.namespace if "namespace" in config.model_fields_set else None)
        return f"roll view with the output_dir of the run that explores, or roll decide {address}"
    if isinstance(config.path, str):
        return "roll view with the output_dir of the run that explores, or roll decide with experience.path"
    return f"roll view {config.path}"


class WaitingForPeople:
    """Says again and again how many groups wait for people, and gives up when nobody decides for too long.

    Args:
        timeout: Seconds without a decision after which it gives up; ``None``: never.
        command: What a person calls to decide.
        say: Shows a line.
        clock: Seconds.
    """

    def __init__(
        self,
        timeout: float | None,
        command: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = timeout
        self._command = command
        self._say = say
        self._clock = clock
        self._seen: StoreCounts | None = None
        self._since = self._said = 0.0

    def look(self, counts: StoreCounts, there: str) -> None:
        """Take note that only people can help, if nothing else happens.

        Args:
            counts: How the store stands. Any change of it is taken for a sign of life.
            there: What there is beside the groups that wait.

        Raises:
            RolloutError: Nothing has happened for too long.
        """
        now = self._clock()
        if counts != self._seen:
            first = self._seen is None
            self._seen, self._since = counts, now
            self._said = now - _SAY_EVERY if first else self._said
        if self._timeout is not None and now - self._since > self._timeout:
            raise RolloutError(
                f"{there}, {counts.waiting} wait for review, and nobody decided about one for {self._timeout:g} "
                f"seconds (experience.review_timeout). Decide ({self._command}), then go on with "
                "resume_from_checkpoint=true"
            )
        if now - self._said >= _SAY_EVERY:
            self._said = now
            self._say(f"{there}, {counts.waiting} wait for review: {self._command}")
