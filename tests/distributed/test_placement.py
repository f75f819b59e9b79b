"""Where workers go, and what is said where they cannot."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.config import AgenticConfig, ConfigError, RLConfig
from roll.config.rlvr import RLVRConfig
from roll.distributed.placement import (
    ClusterPlan,
    ClusterResources,
    NodeResources,
    RolePlan,
    WorkerPlace,
    check_fits,
    plan_placement,
)

GUIDE = {
    "num_gpus_per_node": 8,
    "actor_train": {"device_mapping": "list(range(0,16))"},
    "actor_infer": {"device_mapping": "list(range(0,16))", "num_gpus_per_worker": 1},
    "reference": {"device_mapping": "list(range(0,16))"},
    "init_kl_coef": 0.1,
}


def plan(**keys: object) -> ClusterPlan:
    return plan_placement(RLConfig.model_validate(keys))


def machines(*nodes: tuple[float, int]) -> ClusterResources:
    return ClusterResources(
        tuple(NodeResources(f"10.0.0.{i}", cpus, devices) for i, (cpus, devices) in enumerate(nodes))
    )


def problem(made: ClusterPlan, resources: ClusterResources) -> str:
    with pytest.raises(ConfigError) as caught:
        check_fits(made, resources)
    return str(caught.value)


def test_the_guides_example_is_two_machines_with_three_colocated_roles() -> None:
    made = plan(**GUIDE)
    assert made.nodes == 2
    for role in ("actor_train", "actor_infer", "reference"):
        workers = made.roles[role].workers
        assert [worker.devices for worker in workers] == [(device,) for device in range(16)]
        assert [worker.node for worker in workers] == [0] * 8 + [1] * 8
        assert [worker.local_rank for worker in workers] == [*range(8), *range(8)]
        assert {worker.local_size for worker in workers} == {8}
    assert set(made.sharing("actor_train")) == {"actor_infer", "reference"}
    assert made.devices(1) == tuple(range(8, 16))
    assert made.cpus(0) == 24


def test_separate_roles_share_nothing() -> None:
    made = plan(num_gpus_per_node=8, actor_train={"device_mapping": "0-3"}, actor_infer={"device_mapping": "4-7"})
    assert made.sharing("actor_train") == ()
    assert made.nodes == 1


def test_devices_go_to_workers_in_the_order_written() -> None:
    made = plan(num_gpus_per_node=8, actor_infer={"device_mapping": "5,4,1,0", "num_gpus_per_worker": 2})
    assert [worker.devices for worker in made.roles["actor_infer"].workers] == [(5, 4), (1, 0)]


def test_workers_without_devices_go_round_the_machines() -> None:
    made = plan(num_nodes=2, actor_train={"world_size": 3})
    assert [(w.node, w.local_rank, w.local_size) for w in made.roles["actor_train"].workers] == [
        (0, 0, 2),
        (1, 0, 1),
        (0, 1, 2),
    ]
    assert made.roles["actor_train"].devices == frozenset()


def test_roles_that_the_run_does_not_use_are_not_placed() -> None:
    keys = {"critic": {}, "reference": {"device_mapping": "0-7"}, "num_gpus_per_node": 8}
    assert set(plan(adv_estimator="grpo", **keys).roles) == {"actor_train", "actor_infer"}
    assert set(plan(adv_estimator="gae", init_kl_coef=0.1, **keys).roles) == {
        "actor_train",
        "actor_infer",
        "critic",
        "reference",
    }


def test_a_reference_without_keys_lives_where_the_policy_trains() -> None:
    made = plan(num_gpus_per_node=2, actor_train={"device_mapping": "0-1"}, init_kl_coef=0.1)
    assert made.roles["reference"].workers == made.roles["actor_train"].workers


@pytest.mark.parametrize(("most", "workers"), [(0, 1), (128, 1), (100, 2), (16, 8), (1, 128)])
def test_environments_are_shared_by_as_many_workers_as_the_limit_asks_for(most: int, workers: int) -> None:
    manager = {"env_groups": 16, "group_size": 8, "max_env_num_per_worker": most}
    config = AgenticConfig.model_validate({"cluster": "ray", "train_env_manager": manager, "rollout_batch_size": 128})
    assert plan_placement(config).roles["train_env_manager"].size == workers


def test_without_evaluation_there_are_no_workers_for_it() -> None:
    assert "val_env_manager" in plan_placement(AgenticConfig(eval_steps=1)).roles
    assert "val_env_manager" not in plan_placement(AgenticConfig(eval_steps=0)).roles


def test_each_reward_domain_is_a_role() -> None:
    config = RLVRConfig.model_validate(
        {"cluster": "ray", "rewards": {"math_rule": {"world_size": 2, "system_envs": {"A": "1"}}}}
    )
    role = plan_placement(config).roles["rewards.math_rule"]
    assert role.size == 2
    assert role.env == {"A": "1"}


def test_a_worker_over_two_machines_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"devices 3-4 would be on machines 0, 1") as caught:
        plan(num_gpus_per_node=4, actor_infer={"device_mapping": "1,2,3,4", "num_gpus_per_worker": 2})
    assert "actor_infer.num_gpus_per_worker = 2" in str(caught.value)


def test_a_plan_fits_machines_in_any_order_and_larger_ones() -> None:
    made = plan(num_gpus_per_node=4, actor_train={"device_mapping": "0-5"}, actor_infer={"world_size": 1})
    assert made.nodes == 2
    check_fits(made, machines((1, 0), (8, 2), (8, 4)))


def test_the_one_machine_that_fits_two_needs_is_given_to_the_larger() -> None:
    made = plan(num_gpus_per_node=4, actor_train={"device_mapping": "0,4,5,6,7"}, actor_infer={"world_size": 1})
    check_fits(made, machines((64, 4), (64, 1)))
    assert "There is: " in problem(made, machines((64, 3), (64, 3)))


SIZES = st.tuples(st.integers(0, 3), st.integers(1, 4))


@pytest.mark.long
@given(needs=st.lists(SIZES, min_size=1, max_size=4), there=st.lists(SIZES, max_size=5))
def test_a_plan_fits_where_some_order_of_the_machines_has_room_for_it(
    needs: list[tuple[int, int]], there: list[tuple[int, int]]
) -> None:
    workers = [
        WorkerPlace(0, node, tuple(range(4 * node, 4 * node + devices)) if first else (), 0, 1)
        for node, (devices, cpus) in enumerate(needs)
        for first in (True, *[False] * (cpus - 1))
    ]
    made = ClusterPlan({"actor_infer": RolePlan("actor_infer", tuple(workers))}, len(needs), 4)
    fits = any(
        all(
            devices <= has and cpus <= processors
            for (devices, cpus), (has, processors) in zip(needs, some, strict=True)
        )
        for some in permutations(there, len(needs))
    )
    resources = machines(*((cpus, devices) for devices, cpus in there))
    if fits:
        check_fits(made, resources)
    else:
        problem(made, resources)


def test_thousands_of_machines_are_placed() -> None:
    devices = {"device_mapping": "list(range(0,8192))"}
    made = plan(num_gpus_per_node=4, actor_train=devices, actor_infer=devices)
    check_fits(made, machines(*[(8, 4)] * 2048))
    last = made.roles["actor_infer"].workers[-1]
    assert (last.node, last.local_rank, last.local_size, made.cpus(2047)) == (2047, 3, 4, 8)


def test_too_few_machines_names_the_role_that_reaches_furthest() -> None:
    text = problem(plan(**GUIDE), machines((64, 8)))
    assert "actor_train.device_mapping = '0-15'" in text
    assert "machine 1 with 8 devices and 24 CPUs" in text
    assert "There is: 10.0.0.0 (8 devices, 64 CPUs)." in text
    assert "1 more machine " in text


def test_too_few_devices_names_the_largest_role() -> None:
    made = plan(num_gpus_per_node=8, actor_train={"device_mapping": "0-1"}, actor_infer={"device_mapping": "2-7"})
    text = problem(made, machines((64, 4)))
    assert "actor_infer.device_mapping = '2-7'" in text
    assert "machine 0 with 8 devices" in text
    assert "num_gpus_per_node=4" in text


def test_devices_on_machines_without_any_suggests_processors() -> None:
    text = problem(plan(actor_train={"device_mapping": "0"}), machines((64, 0)))
    assert "set it to null to run on CPUs" in text


def test_too_few_processors_names_the_role_with_most_workers() -> None:
    text = problem(plan(actor_train={"world_size": 2}, actor_infer={"world_size": 9}), machines((4, 0)))
    assert "actor_infer.world_size\n" in text
    assert "machine 0 with 0 devices and 11 CPUs" in text
    assert "most of the workers, 9" in text
