"""Runs on several machines (raylets of this one) that lose a machine, or the driver itself."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.ray_support import AGENTIC, RAY, assert_equal_runs, run_on_ray, trained_on
from tests.e2e.support import command, start

pytestmark = pytest.mark.exhaustive

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster as Raylets  # noqa: E402
from ray.util import placement_group_table  # noqa: E402

SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture
def raylets() -> Iterator[Raylets]:
    """Three machines; the run joins them as a user does, by ``RAY_ADDRESS``."""
    ray.shutdown()  # what files before this one shared
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Raylets(initialize_head=True, head_node_args={"num_cpus": 8, "_system_config": SOON})
        for _ in range(2):
            made.add_node(num_cpus=8)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        ray.shutdown()
        made.shutdown()


def lose_a_machine(raylets: Raylets, when: Path, lost: list[str]) -> None:
    """Wait for ``when`` to exist, then end a machine that workers of the run are on, not the one with Ray's head."""
    deadline = time.monotonic() + 200
    while not when.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    head = raylets.head_node.node_id
    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    used = {node for group in groups for node in group["bundles_to_node_id"].values()} - {head}
    lost += used
    for machine in list(raylets.worker_nodes):
        if machine.node_id in lost[:1]:
            raylets.remove_node(machine, allow_graceful=False)


def test_a_run_over_two_machines_goes_on_with_a_third_when_one_is_lost(
    raylets: Raylets, in_one_process: Path, tmp_path: Path
) -> None:
    lost: list[str] = []
    # Played, but not trained yet: there is a good deal of the run left to lose.
    second_step = tmp_path / "out" / "trajectories" / "step=000002.parquet"
    watch = threading.Thread(target=lose_a_machine, args=(raylets, second_step, lost))
    watch.start()
    few = {"actor_infer.world_size": 1, "train_env_manager.max_env_num_per_worker": 0}
    metrics = run_on_ray(tmp_path / "out", num_nodes=2, **few)
    watch.join()
    assert lost
    assert_equal_runs(in_one_process, tmp_path / "out")
    assert [row["step"] for row in metrics] == [1, 2, 3]


def test_a_run_whose_driver_is_killed_is_resumed_on_the_same_machines(
    in_one_process: Path, ray_machine: dict[str, str], tmp_path: Path
) -> None:
    """What the driver had reserved there is free again."""
    one_of_each = {**RAY, "actor_train.world_size": 1, "actor_infer.world_size": 1}
    words = command(
        **{**AGENTIC, **one_of_each}, output_dir="out", env_modules="[sabotage]", resume_from_checkpoint="true"
    )
    killed = start(words, tmp_path, **ray_machine, ROLL_TEST_KILL="rollout:3")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert trained_on(tmp_path / "out", 2) and not (tmp_path / "out" / "trajectories" / "step=000003.parquet").exists()
    done = start(words, tmp_path, **ray_machine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equal_runs(in_one_process, tmp_path / "out")
