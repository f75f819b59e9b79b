"""Several machines: three raylets on this one, each with two devices that exist only in Ray's books."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from worker_examples import Worker

from roll.config import ConfigError, RLConfig, RunError
from roll.distributed import WorkerDiedError, WorkerSpec

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster as Raylets  # noqa: E402

from roll.distributed.ray_cluster import RayCluster  # noqa: E402

pytestmark = pytest.mark.processes

KEYS = {
    "cluster": "ray",
    "num_gpus_per_node": 2,
    "actor_train": {"device_mapping": "list(range(0,4))"},
    "actor_infer": {"device_mapping": "5,4", "num_gpus_per_worker": 2},
    "reference": {"device_mapping": "list(range(0,4))"},
    "init_kl_coef": 0.1,
    "rpc_timeout": 60,
}
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
MACHINE = {"num_cpus": 4, "num_gpus": 2}


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    """Three machines; the run joins them as a user does, by ``RAY_ADDRESS``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Raylets(initialize_head=True, head_node_args={**MACHINE, "_system_config": SOON})
        made.add_node(**MACHINE)
        made.add_node(**MACHINE)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:6379", "somewhere"])
def test_an_address_where_no_cluster_answers_is_refused_soon(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    if ":" in address:  # with which Ray would try for minutes
        monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray itself is asked"))
    with pytest.raises(RunError, match=f"No Ray cluster answers at RAY_ADDRESS={address}"):
        asyncio.run(RayCluster.connect(RLConfig.model_validate(KEYS)))
    assert not ray.is_initialized()


@pytest.mark.exhaustive
def test_roles_land_where_the_mapping_says_and_share_devices(raylets: Raylets) -> None:
    async def play() -> None:
        cluster = await RayCluster.connect(RLConfig.model_validate(KEYS))
        try:
            train, infer, reference = [
                await cluster.start(role, WorkerSpec(cls=Worker))
                for role in ("actor_train", "actor_infer", "reference")
            ]
            nodes = await train.all("node")
            assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
            assert await reference.all("node") == nodes
            (alone,) = await infer.all("node")
            assert alone not in nodes

            names = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK")
            found = await train.all("environment", *names)
            assert [list(env.values()) for env in found] == [
                ["0", "0", "2", "0"],
                ["1", "0", "2", "1"],
                ["0", "0", "2", "2"],
                ["1", "0", "2", "3"],
            ]
            assert (await infer.one(0, "environment", names[0]))[names[0]] == "1,0"
            assert [rank for _, _, rank in await train.all("about")] == [0, 1, 0, 1]

            while ray.available_resources().get("GPU", 0):
                # Ray's books are a little behind; all six devices are to be taken.
                await asyncio.sleep(0.1)
        finally:
            await cluster.close()
        assert not ray.is_initialized()

    asyncio.run(asyncio.wait_for(play(), 300))


@pytest.mark.exhaustive
def test_a_mapping_that_is_too_big_says_what_there_is_and_reserves_nothing(raylets: Raylets) -> None:
    config = RLConfig.model_validate({**KEYS, "num_gpus_per_node": 4})
    with pytest.raises(ConfigError, match=r"actor_train.device_mapping = '0-3'") as caught:
        asyncio.run(RayCluster.connect(config))
    assert str(caught.value).count("(2 devices, 4 CPUs)") == 3
    assert not ray.is_initialized()


@pytest.mark.exhaustive
def test_a_cluster_that_others_use_is_waited_for_until_the_deadline(raylets: Raylets) -> None:
    async def play() -> None:
        config = RLConfig.model_validate(KEYS)
        hurried = RLConfig.model_validate({**KEYS, "rpc_timeout": 2})
        ray.init(log_to_driver=False)
        try:
            first = await RayCluster.connect(config)
            with pytest.raises(RunError, match=r"did not have .*'GPU': 2.* free within 2 s"):
                await RayCluster.connect(hurried)
            await first.close()
            # What was reserved is free again, and Ray that others started goes on.
            second = await RayCluster.connect(config)
            await second.close()
            assert ray.is_initialized()
        finally:
            ray.shutdown()

    asyncio.run(asyncio.wait_for(play(), 300))


@pytest.mark.exhaustive
def test_a_lost_machine_is_noticed_and_its_workers_move_to_a_new_one(raylets: Raylets) -> None:
    async def play() -> None:
        cluster = await RayCluster.connect(RLConfig.model_validate(KEYS))
        try:
            train = await cluster.start("actor_train", WorkerSpec(cls=Worker))
            nodes = await train.all("node")
            head = raylets.head_node.node_id
            lost = next(node for node in nodes if node != head)
            busy = asyncio.create_task(train.all("sleep", nodes.index(lost), 60.0))
            await asyncio.sleep(0.5)
            raylets.remove_node(next(node for node in raylets.worker_nodes if node.node_id == lost))
            with pytest.raises(WorkerDiedError, match="actor_train rank"):
                await busy
            raylets.add_node(**MACHINE)
            await train.restart()
            again = await train.all("node")
            assert lost not in again
            assert Counter(Counter(again).values()) == Counter({2: 2})
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(play(), 300))
