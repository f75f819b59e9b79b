"""Parcels over real Ray: who has one can open it, wherever it went, and the driver knows which it has."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from roll.config import AgenticConfig
from roll.distributed import WorkerDiedError, WorkerSpec

ray = pytest.importorskip("ray")

from roll.distributed.ray_cluster import RayCluster  # noqa: E402
from roll.distributed.ray_group import RayGroup  # noqa: E402
from roll.distributed.ray_parcels import RayParcel, RayParcels  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

CONFIG = {
    "cluster": "ray",
    "data_plane": "workers",
    "train_env_manager": {"env_groups": 1, "group_size": 2},
    "rollout_batch_size": 2,
    "eval_steps": 0,
    "rpc_timeout": 60,
}


class Keeper:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    async def hold(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept) - 1

    async def contents(self, numbers: Sequence[int]) -> list[Any]:
        return [self.kept[number] for number in numbers]


class Sender:
    """Sends from a process of its own, and opens what others sent."""

    async def send(self, parcels: RayParcels, size: int) -> RayParcel:
        return await parcels.put(np.full(size, 2.0))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    connected = asyncio.run(RayCluster.connect(AgenticConfig.model_validate(CONFIG)))
    yield connected
    asyncio.run(connected.close())


def test_what_a_worker_sent_is_opened_elsewhere_even_after_its_death(cluster: RayCluster) -> None:
    async def scenario() -> tuple[RayGroup, RayParcels, list[RayParcel]]:
        keepers = await cluster.start("learner", WorkerSpec(cls=Keeper))
        parcels = RayParcels(keepers.calls())
        senders = await cluster.start("train_env_manager", WorkerSpec(cls=Sender))
        sent = [await senders.one(0, "send", parcels, size) for size in (3, 1_000_000)]
        await senders.close()
        return keepers, parcels, sent

    keepers, parcels, sent = asyncio.run(scenario())
    assert sent[0].open().tolist() == [2.0, 2.0, 2.0]
    assert pickle.loads(pickle.dumps(sent))[1].open().sum() == 2_000_000.0
    assert all(len(pickle.dumps(parcel)) < 200 for parcel in sent), "however much it stands for"

    gc.collect()
    assert parcels.here() == {0, 1}
    again = pickle.loads(pickle.dumps(sent[0]))
    sent.clear()
    gc.collect()
    assert parcels.here() == {0} and again.number == 0, "a copy counts as well as the first"
    del again
    gc.collect()
    assert not parcels.here()

    late = RayParcel(parcels._keepers.namespace, "learner", 0)
    asyncio.run(keepers.close())
    with pytest.raises(WorkerDiedError, match="learner"):
        late.open()
