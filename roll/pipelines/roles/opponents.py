"""The engines of models that have seats of games and are not trained; leagues take past checkpoints of the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roll.config import ConfigError, PlayingConfig, Problem
from roll.config.opponents import OPPONENTS, LeagueConfig
from roll.distributed import Cluster, WorkerGroup, WorkerSpec
from roll.generation import Activity
from roll.pipelines.roles.models import TrainRole
from roll.workers.classes import worker_class
from roll.workers.engine_client import Engines
from roll.workers.opponents import OpponentEngines
from roll.workers.setup import Registered

LEAGUE: Final = "league"
"""Folder of the checkpoints that opponents play with, in that of the run."""


async def start_opponents(
    config: PlayingConfig, cluster: Cluster, registered: Registered, activity: Activity | None
) -> dict[str, OpponentEngines]:
    """Start the engines of all opponents; each in turn is one that the engines before it wait for.

    Raises:
        ConfigError: If a model cannot be loaded.
    """
    started = {}
    last = activity
    for name, opponent in config.opponents.items():
        role = f"{OPPONENTS}.{name}"
        own: list[Activity] = []
        for _ in range(opponent.workers):
            if last is not None:
                own.append(last := last.beside())
        arguments = (config, registered, None, own or None, role)
        group = await cluster.start(role, WorkerSpec(cls=worker_class(config, role), args=arguments))
        started[name] = OpponentEngines(Engines(group.calls()), tuple(own))
    return started


@dataclass(frozen=True, slots=True)
class League:
    """Opponents that are past checkpoints of the policy.

    Which they are follows from the number of steps alone, so that a run that goes on from a checkpoint has the same:
    after every so many steps the policy takes the place of the member that is there longest.

    Args:
        name: Of the opponent.
        config: How often, and how many.
        group: The engines, one for each member.
        folder: Where the weights are kept.
    """

    name: str
    config: LeagueConfig
    group: WorkerGroup
    folder: Path

    async def grow(self, step: int, policy: TrainRole) -> None:
        """Let the policy join as it is after ``step``, if it is its time."""
        if step % self.config.every == 0:
            await policy.export(self._weights(step))
            await self._join(step)

    async def restore(self, step: int) -> None:
        """Have the members of a run that took ``step`` steps.

        Raises:
            ConfigError: Their weights are not there.
        """
        every, keep = self.config.every, self.config.keep
        joined = step // every
        for number in range(max(1, joined - keep + 1), joined + 1):
            folder = self._weights(number * every)
            if not folder.is_dir():
                message = f"{folder} is missing: the run had this opponent when the checkpoint was written."
                fix = "put the folder back, or begin a new run."
                raise ConfigError([Problem(f"{OPPONENTS}.{self.name}.league", message, fix)])
            await self._join(number * every)

    async def _join(self, step: int) -> None:
        rank = step // self.config.every % self.config.keep
        await self.group.one(rank, "load", self._weights(step), step)

    def _weights(self, step: int) -> Path:
        return self.folder / f"step={step:06d}"


def leagues(config: PlayingConfig, groups: Mapping[str, WorkerGroup]) -> Iterator[League]:
    """Yield the leagues among the opponents whose engines were started."""
    for name, opponent in config.opponents.items():
        if opponent.league is not None:
            folder = (config.output_dir / LEAGUE / name).absolute()
            yield League(name, opponent.league, groups[f"{OPPONENTS}.{name}"], folder)
