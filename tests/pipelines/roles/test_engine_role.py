"""Engines that die or fall silent, and who hears of it; the workers are fakes that fail as they are told."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roll.distributed import WorkerDiedError, WorkerError, WorkerTimeoutError
from roll.distributed.weight_sync import WeightSyncError
from roll.pipelines.roles import engines as role
from roll.pipelines.roles.engines import EngineRole
from roll.pipelines.roles.pool import WorkerPool
from tests.e2e.support import small_config


class FakeGroup:
    """**Not workers**: calls fail as often as ``failures`` says, and are counted."""

    role = "actor_infer"
    size = 2

    def __init__(self) -> None:
        self.failures: dict[int, list[WorkerError]] = defaultdict(list)
        self.told: list[tuple[int, str]] = []
        self.restarted: list[int] = []

    def calls(self) -> FakeGroup:
        return self

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        if self.failures[rank]:
            raise self.failures[rank].pop(0)
        self.told.append((rank, method))
        return True

    async def restart(self, rank: int | None = None) -> None:
        assert rank is not None
        self.restarted.append(rank)
        self.failures[rank].clear()


def died() -> WorkerError:
    return WorkerDiedError("actor_infer", 1, "rank 1", "it was killed")


def silent() -> WorkerError:
    return WorkerTimeoutError("actor_infer", ["rank 1"], "alive", 1.0)


async def hear(group: FakeGroup, folder: Path) -> list[int]:
    """Watch engines until somebody is told of one; return who that was."""
    heard: list[int] = []
    something = asyncio.Event()
    engines = EngineRole(group, None, small_config(folder))  # type: ignore[arg-type]

    async def listen(rank: int) -> None:
        heard.append(rank)
        something.set()

    engines.on_restart(listen)
    async with engines.watched():
        await asyncio.wait_for(something.wait(), 100)
        await asyncio.sleep(0.05)
    return heard


def test_an_engine_that_died_is_made_again_and_listeners_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "WATCH_SECONDS", 0.01)
    group = FakeGroup()
    group.failures[1] = [died(), died()]
    assert asyncio.run(hear(group, tmp_path)) == [1]
    assert group.restarted == [1]


def test_an_engine_that_is_back_after_a_silence_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Clients that waited for it have given it up: with one engine, nobody would ever ask it again.
    monkeypatch.setattr(role, "WATCH_SECONDS", 0.01)
    group = FakeGroup()
    group.failures[1] = [silent()]
    assert asyncio.run(hear(group, tmp_path)) == [1]
    assert group.restarted == []


def test_workers_that_cannot_be_told_are_passed_over() -> None:
    group = FakeGroup()
    group.failures[0] = [died()]
    asyncio.run(WorkerPool(group).tell("engine_restarted", 1))  # type: ignore[arg-type]
    assert group.told == [(1, "engine_restarted")]


class FailingTrainers:
    """**Not workers**: they open a link and then send nothing, because an engine is missing."""

    async def all(self, method: str, *args: Any) -> list[Any]:
        if method == "open_weights":
            return [SimpleNamespace(method="gloo")]
        if method == "send_weights":
            await asyncio.sleep(0.01)
            raise WeightSyncError("engine-1 is gone")
        return [None]


class ReceivingGroup(FakeGroup):
    """**Not workers**: engines of which the second dies, and the first waits for weights without end."""

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        if method == "receive_weights":
            if rank == 1:
                raise died()
            await asyncio.Event().wait()
        return ["here"] if method == "places" else None


@pytest.mark.parametrize("both", [True, False])
def test_an_engine_that_waits_for_weights_in_vain_is_given_up_and_what_went_wrong_is_said(
    both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "report_missing", lambda *told: None)
    group = ReceivingGroup()
    group.size = 2 if both else 1
    engines = EngineRole(group, FailingTrainers(), small_config(tmp_path))  # type: ignore[arg-type]
    with pytest.raises((WorkerDiedError, WeightSyncError)):  # and no cancellation: nobody stopped the run
        asyncio.run(engines.publish(1))
