"""Models that have seats of games and are not trained, as a worker that plays the games asks them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

from roll.common.unavailable import UnavailableError
from roll.config import PlayingConfig
from roll.env_managers.records import EpisodeSpec
from roll.env_managers.seats import Opponent
from roll.generation import Activity, Completion, GenerationRequest, NoActivity, SamplingParams
from roll.schedulers.generation import GenerationScheduler
from roll.workers.engine_client import Engines


@dataclass(frozen=True)
class OpponentEngines:
    """The engines of an opponent; can be handed to other workers.

    Attributes:
        engines: One, or one for each member of a league.
        activities: What each waits for; empty for a run that need not be reproducible.
    """

    engines: Engines
    activities: tuple[Activity, ...] = ()


class OpponentSeats:
    """Asks the engines of an opponent; the games of a group have the same member of a league.

    Args:
        config: The run.
        name: Which opponent.
        given: Its engines.
        sampling: How it samples.
        prefix: Put before the names of requests, so that several workers can ask.
        part: Which of how many workers that ask this is.
    """

    def __init__(
        self,
        config: PlayingConfig,
        name: str,
        given: OpponentEngines,
        sampling: SamplingParams,
        prefix: str,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._name, self._engines = name, given.engines
        clients = given.engines.clients()
        # The members of a league differ; other engines of an opponent have the same weights, and any may answer.
        is_league = config.opponents[name].league is not None
        shares = [[client] for client in clients] if is_league else [clients]
        self._schedulers = [GenerationScheduler.for_run(config, share, prefix=prefix, part=part) for share in shares]
        activities = given.activities or [NoActivity()] * len(shares)
        self._members = [
            Opponent(partial(self._generate, scheduler), scheduler.release, sampling, activity)
            for scheduler, activity in zip(self._schedulers, activities, strict=False)
        ]

    def __call__(self, spec: EpisodeSpec) -> Opponent:
        """Return who has the opponent's seats in an episode."""
        key = f"{spec.run_seed}\0{spec.group_id}".encode()
        return self._members[int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % len(self._members)]

    def restarted(self, rank: int) -> None:
        """Take note that an engine that was dead lives again."""
        alone = len(self._schedulers) > 1
        self._schedulers[rank if alone else 0].replace(0 if alone else rank, self._engines.client(rank))

    async def _generate(self, scheduler: GenerationScheduler, request: GenerationRequest) -> Completion:
        """Return the completion of a request.

        Raises:
            UnavailableError: The engine failed. It is part of the policy's world, as a server that an environment asks.
        """
        try:
            return await scheduler.generate(request)
        except Exception as error:
            message = f"the engine of opponents.{self._name} failed: {type(error).__name__}: {error}"
            raise UnavailableError(message) from error
