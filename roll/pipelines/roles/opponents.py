"""The engines of models that have seats of games and are not trained; leagues take past checkpoints of the policy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from roll.config import ConfigError, Problem, SamplingConfig
from roll.config.opponents import OPPONENTS, LeagueConfig
from roll.distributed import Cluster, WorkerDiedError, WorkerGroup, WorkerSpec
from roll.generation import Activity
from roll.pipelines.roles.engines import EngineRole
from roll.pipelines.roles.models import TrainRole
from roll.workers.classes import worker_class
from roll.workers.opponents import OpponentEngines
from roll.workers.setup import Registered

LEAGUE: Final = "league"
"""Folder of the checkpoints that opponents play with, in that of the run."""


@dataclass(frozen=True, slots=True)
class OpponentRole:
    """An opponent as the driver sees it.

    Attributes:
        engines: One, or one for each member of its league; made again when they die.
        activities: What each waits for; empty for a run that need not be reproducible.
        league: Who its members are, if it has some.
    """

    engines: EngineRole
    activities: tuple[Activity, ...]
    league: League | None

    @property
    def seats(self) -> OpponentEngines:
        """What workers that play games are given."""
        return OpponentEngines(self.engines.engines, self.activities)


async def start_opponents(
    config: SamplingConfig, cluster: Cluster, registered: Registered, activity: Activity | None
) -> dict[str, OpponentRole]:
    """Start the engines of all opponents; each in turn is one that the engines before it wait for.

    Raises:
        ConfigError: If a model cannot be loaded.
    """
    started = {}
    last = activity
    for name, opponent in config.opponent_roles.items():
        role = f"{OPPONENTS}.{name}"
        own: list[Activity] = []
        for _ in range(opponent.workers):
            if last is not None:
                own.append(last := last.beside())
        arguments = (config, registered, None, own or None, role)
        group = await cluster.start(role, WorkerSpec(cls=worker_class(config, role), args=arguments))
        engines, league = EngineRole(group, None, config), None
        if opponent.league is not None:
            league = League(name, opponent.league, group, (config.output_dir / LEAGUE / name).absolute())
            # Before anybody else hears of it: an engine that is made again has the weights of the role's model.
            engines.on_restart(league.rejoin)
        started[name] = OpponentRole(engines, tuple(own), league)
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
    _members: dict[int, int] = field(default_factory=dict)

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

    async def rejoin(self, rank: int) -> None:
        """Give an engine that was made again the weights of its member; one that nobody joined has its own."""
        if rank in self._members:
            step = self._members[rank]
            await self.group.one(rank, "load", self._weights(step), step)

    async def _join(self, step: int) -> None:
        rank = step // self.config.every % self.config.keep
        self._members[rank] = step
        with suppress(WorkerDiedError):  # whoever makes it again has it rejoin
            await self.rejoin(rank)

    def _weights(self, step: int) -> Path:
        return self.folder / f"step={step:06d}"
