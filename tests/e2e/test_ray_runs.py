"""Whole runs on Ray: the same as in one process, and the same after losing workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.pipelines.agentic import run_agentic
from roll.trajectories.model import Status
from tests.e2e.ray_support import assert_equal_runs, one_ray, run_on_ray, tokens, trained_on
from tests.e2e.support import small_config

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with one_ray():
        yield


@pytest.fixture(scope="module")
def on_ray(session: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a run that lost nothing, and its metrics by step. Its second step is profiled."""
    folder = tmp_path_factory.mktemp("on_ray") / "out"
    profile = "{steps: [2], roles: [actor_train, actor_infer, train_env_manager]}"
    return folder, run_on_ray(folder, enable_ray_timeline="true", profile=profile)


def test_two_ranks_two_engines_and_two_env_workers_give_the_run_of_one_process(
    in_one_process: Path, on_ray: tuple[Path, list[dict[str, Any]]]
) -> None:
    folder, metrics = on_ray
    assert_equal_runs(in_one_process, folder)
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert all(row["weight_sync/bytes"] > 1e5 and row["weight_sync/seconds"] > 0 for row in metrics)
    events = json.loads((folder / "timeline.json").read_text())
    assert any("actor_train" in json.dumps(event) for event in events)


def test_each_rank_of_each_role_writes_a_trace_of_what_it_computed(
    on_ray: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, _ = on_ray
    roles = ("actor_infer", "actor_train", "train_env_manager")
    found = sorted(path.relative_to(folder / "profile") for path in (folder / "profile").rglob("*.*"))
    assert found == [Path("step=000002") / f"{role}-{rank}.json" for role in roles for rank in (0, 1)]
    computed, processes = dict[Path, set[str]](), list[set[int]]()
    for path in found:
        events = json.loads((folder / "profile" / path).read_text())["traceEvents"]
        computed[path] = {event["name"] for event in events if event.get("cat") == "cpu_op"}
        processes.append({event["pid"] for event in events if event.get("cat") == "cpu_op"})
    for path, names in computed.items():
        role = path.stem.rpartition("-")[0]
        assert ("aten::mm" in names or "aten::addmm" in names) is (role != "train_env_manager"), path
        assert any("Backward" in name for name in names) is (role == "actor_train"), path
    assert len(set().union(*processes)) == sum(map(len, processes)), "each is of a process of its own"


@pytest.mark.exhaustive
def test_a_run_that_loses_an_env_worker_an_engine_and_a_train_rank_is_the_run_that_lost_none(
    in_one_process: Path, tmp_path: Path
) -> None:
    """A lost rank costs the steps since the checkpoint, and nothing is trained twice."""
    # Two optimiser steps each: the sixth of rank 1 is in step 3, after the checkpoint of step 2.
    metrics = run_on_ray(tmp_path / "out", faults="env:6,engine:30,train:6")
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-env", "killed-engine", "killed-train"}
    assert_equal_runs(in_one_process, tmp_path / "out")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert metrics[1]["cluster/worker_restarts"] == 1
    assert metrics[1]["cluster/engine_restarts"] == 1


@pytest.mark.exhaustive
def test_a_run_that_loses_the_engine_of_an_opponent_is_the_run_that_lost_none(tmp_path: Path) -> None:
    """Of a league: what it had played with has to be loaded again."""
    duel = {"preset": "textarena_duel", "pretrain": "toy_duel", "eval_steps": 0, "max_steps": 2, "save_steps": 2}
    duel |= {"custom_envs.Duel.env_config.seats": "[policy, other]", "opponents.other": "{league: {every: 1, keep: 2}}"}
    run_agentic(small_config(tmp_path / "one", **duel, trajectory_dump_steps=1))
    alone = {"actor_train.world_size": 1, "actor_infer.world_size": 1, "train_env_manager.max_env_num_per_worker": 0}
    metrics = run_on_ray(tmp_path / "out", faults="opponent:45", **duel, **alone)
    assert (tmp_path / "killed-opponent").exists()
    for step in (1, 2):
        assert tokens(trained_on(tmp_path / "one", step)) == tokens(trained_on(tmp_path / "out", step)), step
    assert metrics[-1]["cluster/engine_restarts"] == 1 and metrics[-1]["rollout/errors"] == 0


@pytest.mark.exhaustive
def test_roles_that_share_a_device_take_turns(in_one_process: Path, tmp_path: Path) -> None:
    # The device exists in Ray's books only; what is moved and when is the same.
    shared = {"actor_train.world_size": 1, "actor_infer.world_size": 1}
    shared |= {"actor_train.device_mapping": "[0]", "actor_infer.device_mapping": "[0]"}
    # The only engine dies while the trainer's weights are away: they come back for its successor.
    metrics = run_on_ray(tmp_path / "out", faults="engine:30", **shared)
    assert metrics[-1]["cluster/engine_restarts"] == 1
    assert_equal_runs(in_one_process, tmp_path / "out")
    for row in metrics:
        for stage in ("rollout", "update"):
            assert row[f"memory/{stage}/actor_train_gib"] > 0.05
            assert row[f"memory/{stage}/actor_infer_gib"] > 0.05
    # What an engine answers is compared when the trainer is back, before the next update.
    assert "weight_sync/probe_difference" not in metrics[0]
    assert all(row["weight_sync/probe_difference"] < 1e-4 for row in metrics[1:])


@pytest.mark.exhaustive
def test_an_environment_that_hangs_ends_its_episode_and_not_the_run(tmp_path: Path) -> None:
    hanging = {
        "max_steps": 1,
        "env_modules": "[tests.e2e.broken_envs]",
        "train_env_manager.tags": "[steady,hangs]",
        "train_env_manager.timeouts.step": 1.0,
        "actor_train.world_size": 1,
        "actor_infer.world_size": 1,
        "train_env_manager.max_env_num_per_worker": 0,
    }
    run_on_ray(tmp_path / "out", **hanging)
    by_tag = {tag: {t.status for t in trained_on(tmp_path / "out", 1) if t.tag == tag} for tag in ("steady", "hangs")}
    assert by_tag["hangs"] == {Status.ERROR_TIMEOUT}
    assert not any(status.is_error for status in by_tag["steady"])
