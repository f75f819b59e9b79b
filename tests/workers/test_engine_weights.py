"""Where the weights of an engine arrive; engines are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from roll.distributed.context import WorkerContext, entered
from roll.distributed.weight_sync import Place, WeightSyncError
from roll.workers.engine_weights import OwnInbox, ProcessesInbox, weight_inbox


class FakeEngine:
    """**Not an engine**: one that computes in this process."""


class FakeEngineWithProcesses:
    """**Not an engine**: one with two processes of its own, which are this one."""

    def __init__(self) -> None:
        self.connected: list[str] = []

    async def call_workers(self, function: Callable[[int], Any]) -> list[Any]:
        return [function(rank) for rank in range(2)]

    async def connect_workers(self, make: Any) -> None:
        self.connected = list(make.args[1])

    async def disconnect_workers(self) -> None:
        self.connected = []

    async def receive_weights(self) -> int:
        if not self.connected:
            raise RuntimeError("a process failed")
        return 7


@pytest.mark.parametrize(("engine", "apart"), [(FakeEngine(), ProcessesInbox), (FakeEngineWithProcesses(), OwnInbox)])
def test_weights_arrive_in_the_worker_where_the_engine_has_no_processes_or_the_trainer_is_here(
    engine: Any, apart: type
) -> None:
    with entered(WorkerContext("actor_infer")):
        assert isinstance(weight_inbox(engine), OwnInbox)
    with entered(WorkerContext("actor_infer", own_process=True)):
        assert not isinstance(weight_inbox(engine), apart)


def test_processes_of_an_engine_are_places_of_their_own_and_have_one_link_at_a_time() -> None:
    async def play() -> None:
        engine = FakeEngineWithProcesses()
        inbox = ProcessesInbox(engine)  # type: ignore[arg-type]
        assert await inbox.places() == [Place.here(), Place.here()]
        offer: Any = None
        await inbox.open("all", offer, ["engine 0.0", "engine 0.1"])
        assert engine.connected == ["engine 0.0", "engine 0.1"]
        assert await inbox.receive("all") == 7
        await inbox.close("another")
        assert engine.connected
        await inbox.close("all")
        assert not engine.connected
        with pytest.raises(WeightSyncError, match="no end of link 'all'"):
            await inbox.receive("all")

    asyncio.run(play())


def test_what_an_engine_says_of_weights_that_did_not_come_is_a_failure_of_the_sync() -> None:
    async def play() -> None:
        inbox = ProcessesInbox(FakeEngineWithProcesses())  # type: ignore[arg-type]
        inbox._link = "all"
        with pytest.raises(WeightSyncError, match="a process failed"):
            await inbox.receive("all")

    asyncio.run(play())
