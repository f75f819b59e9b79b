"""A store in Ray over several machines: raylets of this one, each with an object store of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experience_support import make_group
from killed_programs import number_of

from roll.experience.base import Lease, Reader, StoreCounts
from roll.experience.errors import ReviewError
from roll.trajectories.model import TrajectoryGroup

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster as Raylets  # noqa: E402
from ray.experimental import get_object_locations  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

from roll.distributed.ray_store import RayStore  # noqa: E402
from roll.distributed.transport import pack  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

# Not sooner: where much else runs, the machine of this program would be taken for lost, and the program end with it.
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    """One machine, on which this program is; tests add others, and lose them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
        patch.setenv("PYTHONPATH", path)  # of the actors
        made = Raylets(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": SOON})
        patch.setenv("RAY_ADDRESS", made.address)
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


class Program:
    """A program on a machine."""

    def append(self, store: str, numbers: Sequence[int], waits: bool = False, folder: Path | None = None) -> int:
        return RayStore(store, folder=folder).append([replace(make_group(n), waits=waits) for n in numbers], 0)

    def lease(self, store: str, reader: str, count: int, step: int) -> Lease | None:
        return RayStore(store, Reader(reader)).lease(count, step)


class Machine:
    """One more machine, with a program on it."""

    def __init__(self, raylets: Raylets) -> None:
        self._raylets = raylets
        self._raylet = raylets.add_node(num_cpus=1)
        self.node = self._raylet.node_id
        there = NodeAffinitySchedulingStrategy(self.node, soft=False)
        self._program = ray.remote(Program).options(num_cpus=0, scheduling_strategy=there).remote()

    def append(self, *args: Any) -> int:
        return ray.get(self._program.append.remote(*args))

    def lease(self, *args: Any) -> Lease | None:
        return ray.get(self._program.lease.remote(*args))

    def lose(self) -> None:
        """End it, as where its power is cut."""
        self._raylets.remove_node(self._raylet, allow_graceful=False)
        until = time.monotonic() + 60
        while any(each["NodeID"] == self.node and each["Alive"] for each in ray.nodes()):
            assert time.monotonic() < until, "Ray does not notice"
            time.sleep(0.1)


def groups(*numbers: int) -> list[TrajectoryGroup]:
    return [make_group(number) for number in numbers]


def numbers_of(lease: Lease | None) -> list[int]:
    assert lease is not None and list(lease.groups) == groups(*(number_of(each.group_id) for each in lease.groups))
    return [number_of(each.group_id) for each in lease.groups]


def test_a_group_lies_on_the_machine_that_appended_it_and_is_read_from_any(raylets: Raylets) -> None:
    store, there = RayStore("places"), Machine(raylets)
    store.append(groups(0, 1), 0)
    assert there.append("places", [1, 2, 3]) == 2
    host, reader = ray.get_actor("places", namespace="roll"), Reader("looks")
    places = ray.get(host.references.remote(pack((store.index.lease(reader, 4, 1),))))
    found = [each["node_ids"] for each in get_object_locations(list(places)).values()]
    assert found == [[ray.get_runtime_context().get_node_id()]] * 2 + [[there.node]] * 2
    assert numbers_of(there.lease("places", "there", 4, 1)) == [0, 1, 2, 3] == numbers_of(store.lease(4, 1))
    there.lose()


def test_a_lost_machine_loses_what_lay_there_and_nothing_is_learned_from_twice(raylets: Raylets) -> None:
    store, other, there = RayStore("losses"), RayStore("losses", Reader("other")), Machine(raylets)
    store.append(groups(0, 1), 0)
    there.append("losses", [2, 3])
    store.append(groups(4, 5), 0)
    there.append("losses", [6, 7])
    there.append("losses", [8], True)
    assert numbers_of(store.lease(3, 1)) == [0, 1, 2]
    store.commit(1)
    assert store.index.lease(Reader(), 3, 2), "what a trainer is given that is killed before it reads it"
    there.lose()
    assert store.lease(3, 2) is None, "4 and 5 are left"
    assert store.counts() == StoreCounts(6, 2, 2, 0, 3, 0, waiting=1, lost=3)
    with pytest.raises(ReviewError, match="is gone with the machine"):
        store.look(make_group(8).group_id)
    assert not store.waiting() and store.counts().lost == 4
    assert store.append(groups(2, 3, 6), 1) == 2, "2 was learned from"
    assert numbers_of(store.lease(3, 2)) == [4, 5, 3]
    assert numbers_of(other.lease(6, 1)) == [0, 1, 4, 5, 3, 6], "2 is nowhere any more"
    assert store.counts().lost == 5 and numbers_of(store.lease(1, 3)) == [6]


def test_a_lost_machine_loses_nothing_of_a_folder_on_another(raylets: Raylets, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store, there = RayStore("folder", folder=folder), Machine(raylets)
    store.append(groups(0, 1), 0)
    assert there.append("folder", [2, 3], False, folder) == 2
    there.lose()
    assert numbers_of(store.lease(4, 1)) == [0, 1, 2, 3] and not store.counts().lost
