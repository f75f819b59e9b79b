"""Which prompts of a step to answer next, and which of the answered groups to train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roll.trajectories.model import TrajectoryGroup

Keep = Callable[[TrajectoryGroup], bool]
"""Whether a group is worth training on."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step has to train on.

    Attributes:
        groups: One per prompt, in the order of the data.
        consumed: Prompts used up, the filtered ones among them; the next step begins behind them.
        filtered: Groups that were replaced.
        aborted: Prompts begun that were not needed; they come again in the next step.
        fallback: Whether nothing passed the filter, so that the groups are unfiltered.
    """

    groups: list[TrajectoryGroup]
    consumed: int
    filtered: int = 0
    aborted: int = 0
    fallback: bool = False


class PromptSearch:
    """Which prompts of a step were answered, and which groups it takes: the first that pass, in the order of the data.

    Args:
        start: Position of the first prompt.
        wanted: Groups of the step.
        most: Prompts to try at most.
        keep: The filter; without it every group is taken.
    """

    def __init__(self, start: int, wanted: int, most: int, keep: Keep | None) -> None:
        self._start, self._wanted, self._most, self._keep = start, wanted, most, keep
        self._next = start
        self._groups: dict[int, TrajectoryGroup] = {}
        self._passed: set[int] = set()

    def admit(self, running: int, additional: int) -> range:
        """Return the positions to begin now."""
        missing = self._wanted - len(self._passed) + (additional if self._keep is not None else 0)
        end = min(self._next + max(missing - running, 0), self._start + self._most)
        begun, self._next = range(self._next, end), max(end, self._next)
        return begun

    def finish(self, position: int, group: TrajectoryGroup) -> None:
        """Take note of an answered prompt."""
        self._groups[position] = group
        if self._keep is None or self._keep(group):
            self._passed.add(position)

    @property
    def complete(self) -> bool:
        """Whether the finished prompts before the first unfinished one hold all that is wanted."""
        return len(self._accepted()) == self._wanted

    def result(self, aborted: int) -> Collected:
        """Return what was found."""
        accepted = self._accepted()
        if not accepted:
            unfiltered = sorted(self._groups)[: self._wanted]
            return Collected([self._groups[position] for position in unfiltered], len(self._groups), fallback=True)
        full = len(accepted) == self._wanted
        consumed = (accepted[-1] + 1 if full else self._next) - self._start
        return Collected([self._groups[position] for position in accepted], consumed, consumed - len(accepted), aborted)

    def _accepted(self) -> list[int]:
        accepted: list[int] = []
        for position in range(self._start, self._next):
            if position not in self._groups or len(accepted) == self._wanted:
                break
            if position in self._passed:
                accepted.append(position)
        return accepted
