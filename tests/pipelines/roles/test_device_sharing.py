"""Who has the devices that roles share, stage by stage: workers that keep a book of what they hold there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roll.distributed import LocalGroup, WorkerSpec
from roll.distributed.placement import plan_placement
from roll.pipelines.roles.device_sharing import DeviceSharing
from tests.e2e.support import small_config

GIB = 2**30


class Model:
    """Holds weights and states on a device, as a train worker does."""

    def __init__(self) -> None:
        self.held = {"weights", "states"}

    def offload(self, weights: bool, states: bool) -> None:
        self.held -= {"weights"} if weights else set()
        self.held -= {"states"} if states else set()

    def reload(self, weights: bool, states: bool) -> None:
        self.held |= {"weights"} if weights else set()
        self.held |= {"states"} if states else set()

    def peak_memory(self) -> int:
        return len(self.held) * GIB


class Engine:
    """Holds weights and a cache of keys and values."""

    def __init__(self) -> None:
        self.held = {"weights", "kv_cache"}

    def sleep(self) -> None:
        self.held = set()

    def wake(self, what: str) -> None:
        self.held.add(what)

    def peak_memory(self) -> int:
        return len(self.held) * GIB


class Devices:
    """A trainer, a reference and an engine of this process."""

    def __init__(self, folder: Path, shared: tuple[str, ...]) -> None:
        plan = plan_placement(small_config(folder)).roles["actor_train"]
        groups = [LocalGroup(plan, WorkerSpec(cls=cls), rpc_timeout=60) for cls in (Model, Model, Engine)]
        self.trainer, self.reference, self.engine = (group.worker(0) for group in groups)
        models: dict[str, Any] = {"actor_train": groups[0], "reference": groups[1]}
        self.sharing = DeviceSharing(models, groups[2], shared)

    @property
    def held(self) -> tuple[set[str], set[str], set[str]]:
        return self.trainer.held, self.reference.held, self.engine.held


ALL, ENGINE = {"weights", "states"}, {"weights", "kv_cache"}
NOTHING: set[str] = set()


def test_models_and_engines_are_never_on_the_devices_together_but_for_bare_weights(tmp_path: Path) -> None:
    async def steps() -> None:
        house = Devices(tmp_path, ("actor_train", "reference"))
        assert house.sharing.needed
        await house.sharing.begin_rollout()
        assert house.held == (NOTHING, NOTHING, ENGINE)
        for _ in range(2):
            await house.sharing.begin_update()
            assert house.held == (ALL, ALL, NOTHING)
            await house.sharing.begin_weight_sync()
            assert house.held == ({"weights"}, NOTHING, {"weights"})
            await house.sharing.end_weight_sync()
            assert house.held == (NOTHING, NOTHING, ENGINE)
        async with house.sharing.for_models():
            assert house.held == (ALL, ALL, NOTHING)
        assert house.held == (NOTHING, NOTHING, ENGINE)

    asyncio.run(steps())


def test_a_trainer_that_is_away_comes_back_for_an_engine_that_was_made_again(tmp_path: Path) -> None:
    async def steps() -> None:
        house = Devices(tmp_path, ("actor_train",))
        async with house.sharing.trainer_weights():  # it is there before the first rollout, and stays
            assert house.trainer.held == ALL
        assert house.trainer.held == ALL
        await house.sharing.begin_rollout()
        async with house.sharing.trainer_weights():
            assert "weights" in house.trainer.held
        assert house.trainer.held == NOTHING

    asyncio.run(steps())


def test_roles_with_devices_of_their_own_are_left_alone(tmp_path: Path) -> None:
    async def steps() -> None:
        house = Devices(tmp_path, ())
        assert not house.sharing.needed
        sharing = house.sharing
        for move in (sharing.begin_rollout, sharing.begin_update, sharing.begin_weight_sync, sharing.end_weight_sync):
            await move()
            assert house.held == (ALL, ALL, ENGINE)

    asyncio.run(steps())


@pytest.mark.parametrize("stage", ["rollout", "update"])
def test_the_most_memory_of_each_role_is_reported_in_gib(stage: str, tmp_path: Path) -> None:
    house = Devices(tmp_path, ("actor_train",))
    house.engine.held = {"weights"}
    expected = {"actor_train": 2.0, "reference": 2.0, "actor_infer": 1.0}
    reported = asyncio.run(house.sharing.memory(stage))
    assert reported == {f"memory/{stage}/{role}_gib": value for role, value in expected.items()}
