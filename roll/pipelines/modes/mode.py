"""What the mode of a run decides; ``mode: both``: it samples, and learns from what it sampled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from roll.config import RLConfig
from roll.pipelines.sampled import SampledRun
from roll.pipelines.sampling.stream import Groups, Source
from roll.trajectories.model import TrajectoryGroup


class Mode:
    """Samples, and learns from that. Each other mode says what it does differently.

    Args:
        run: Its run, whose roles have been started.
        domains: The domain of each tag of prompts.
    """

    learns: ClassVar[bool] = True
    """Whether the run changes weights."""

    def __init__(self, run: SampledRun[Any], domains: dict[str, str]) -> None:
        self.run = run
        self.config: RLConfig = run.config
        self.domains = domains

    def sources(self, sources: Sequence[Source]) -> Sequence[Source]:
        """Return what is sampled in a step, from what would be if all that is learned from were."""
        return sources

    def groups(self, sampled: Callable[[], Groups], per_step: int) -> Groups:
        """Return what gives each step its groups.

        Args:
            sampled: Makes what samples them.
            per_step: How many are sampled in a step.
        """
        return sampled()

    def begin(self) -> None:
        """Begin a run that is not resumed."""

    async def ready(self, first: int) -> None:
        """Go on behind step ``first``, whose weights everybody has."""

    async def updated(self, step: int) -> None:
        """Note that the weights of a step have been learned."""

    def version_before(self, step: int) -> int:
        """Return the version of the weights that a step begins with."""
        return step - 1

    async def before_rollout(self, step: int) -> bool:
        """Wait until a step may begin; return whether anything is sampled in it."""
        return True

    def stored_file(self, step: int) -> Path | None:
        """Return the file that has exactly what a step was given, as that step's, where there is one already."""
        return None

    def pass_on(self, groups: Sequence[TrajectoryGroup], step: int, file: Path | None) -> dict[str, float] | None:
        """Give groups to who learns from them instead of this run; see :meth:`SampledRun.pass_on`."""
        return None

    def evaluates(self, step: int, due: bool) -> bool:
        """Whether there is an evaluation after a step, where ``due`` says what the configuration asks for."""
        return due

    def saves(self, step: int, due: bool) -> bool:
        """Whether there is a checkpoint after a step, where ``due`` says what the configuration asks for."""
        return due

    async def save(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write a checkpoint."""
        await write()

    def saved(self) -> None:
        """Note that what was learned has been written."""

    async def ended(self) -> None:
        """Note that the run took all its steps."""

    def close(self) -> None:
        """Give back what is held."""

    def remarks(self) -> Iterator[str]:
        """Yield what a person should know before the first step."""
        return iter(())

    def headline(self, policy: str, step: str) -> str:
        """Return what the run is about, from the name of its policy and what a step is."""
        return f"{policy}, {self.config.adv_estimator}, {step}"
