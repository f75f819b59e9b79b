"""Opponents as a worker asks them: engines that fail, that are gone, and that are made again; the engines are fakes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roll.common.unavailable import UnavailableError
from roll.config import AgenticConfig
from roll.env_managers.records import EpisodeSpec
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.schedulers.replicas import ReplicaDown
from roll.workers.opponents import OpponentEngines, OpponentSeats

SAMPLING = SamplingParams(4)


class FakeEngine:
    """**Not an engine**: answers with its number, or raises what it is given."""

    def __init__(self, number: int, failure: Exception | None) -> None:
        self.number, self.failure = number, failure

    async def generate(self, request: GenerationRequest) -> Completion:
        if self.failure is not None:
            raise self.failure
        return Completion([self.number], [0.0], "stop")

    async def abort(self, request_id: str) -> None: ...

    async def release(self, session: str) -> None: ...


class FakeEngines:
    """**Not workers**: engines of which some fail until they are made again, which adds ten to their number."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = failures

    def clients(self) -> list[FakeEngine]:
        return [FakeEngine(rank, failure) for rank, failure in enumerate(self.failures)]

    def client(self, rank: int) -> FakeEngine:
        return FakeEngine(10 + rank, None)


def seats(engines: FakeEngines, **opponent: Any) -> OpponentSeats:
    keys = {"train_env_manager": {"env_groups": 1, "group_size": 1}, "rollout_batch_size": 1, "eval_steps": 0}
    config = AgenticConfig.model_validate({**keys, "deterministic": False, "opponents": {"start": opponent}})
    return OpponentSeats(config, "start", OpponentEngines(engines), SAMPLING, "")  # type: ignore[arg-type]


async def asked(opponent: OpponentSeats, group: int) -> int:
    spec = EpisodeSpec("Duel", f"g{group}", 0, 1, 1)
    return (await opponent(spec).generate(GenerationRequest(f"r{group}", [1], SAMPLING, 1))).token_ids[0]


def test_an_engine_that_fails_fails_the_game_and_says_whose_it_is() -> None:
    opponent = seats(FakeEngines(ZeroDivisionError("no memory")))
    with pytest.raises(UnavailableError, match=r"opponents\.start failed: ZeroDivisionError: no memory"):
        asyncio.run(asked(opponent, 0))


def test_a_request_waits_for_an_engine_that_is_gone_and_goes_to_the_one_in_its_place() -> None:
    async def play() -> None:
        opponent = seats(FakeEngines(ReplicaDown("killed")))
        waiting = asyncio.ensure_future(asked(opponent, 0))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        opponent.restarted(0)
        assert await waiting == 10

    asyncio.run(asyncio.wait_for(play(), 20))


def test_of_a_league_only_the_games_of_the_member_wait_whose_engine_is_gone() -> None:
    async def play() -> None:
        opponent = seats(FakeEngines(None, ReplicaDown("killed")), league={"every": 1, "keep": 2})
        playing = [asyncio.ensure_future(asked(opponent, group)) for group in range(12)]
        await asyncio.sleep(0.01)
        served = [each.result() for each in playing if each.done()]
        assert 0 < len(served) < 12 and set(served) == {0}
        opponent.restarted(1)
        assert sorted(set(await asyncio.gather(*playing))) == [0, 11]

    asyncio.run(asyncio.wait_for(play(), 20))
