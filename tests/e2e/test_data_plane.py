"""Runs whose tokens go from environments to a worker that learns: the same runs, and no token in the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError
from roll.trajectories.learned import learned_path, read_learned
from roll.trajectories.store import trajectory_path
from tests.e2e.ray_support import assert_equal_runs, furthest, one_ray, run_on_ray, tokens, trained_on, whole_turns
from tests.e2e.support import small_config

ray = pytest.importorskip("ray")

WORKERS = {"data_plane": "workers", "actor_infer.world_size": 1, "train_env_manager.max_env_num_per_worker": 0}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with one_ray():
        yield


def test_the_run_is_that_of_one_process_and_the_driver_sees_no_token(
    in_one_process: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = whole_turns(monkeypatch)
    metrics = run_on_ray(tmp_path / "out", data_plane="workers")
    assert not made, "a whole turn came to the driver"
    assert_equal_runs(in_one_process, tmp_path / "out")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    for step in (1, 2, 3):
        for each in trained_on(tmp_path / "out", step):
            one, other = (
                read_learned(learned_path(trajectory_path(folder, step, "train")), each.group_id, each.episode)
                for folder in (in_one_process, tmp_path / "out")
            )
            assert one.keys() == other.keys()
            for turn, learned in one.items():
                assert learned.trained == other[turn].trained
                assert learned.advantages == pytest.approx(other[turn].advantages, abs=1e-5)


@pytest.mark.exhaustive
def test_losing_an_environment_worker_takes_no_episode_along_and_losing_what_learns_costs_the_steps_since_a_checkpoint(
    in_one_process: Path, tmp_path: Path
) -> None:
    metrics = run_on_ray(tmp_path / "out", faults="put:6,learner:3", **{**WORKERS, "actor_train.world_size": 1})
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-put", "killed-learner"}
    assert_equal_runs(in_one_process, tmp_path / "out")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert metrics[1]["cluster/worker_restarts"] == 1


@pytest.mark.exhaustive
def test_a_critic_and_a_reference_are_asked_by_the_worker_too(tmp_path: Path) -> None:
    models = {"adv_estimator": "gae", "use_kl_loss": "true", "kl_loss_coef": 0.01, "async_generation_ratio": 1}
    models |= {name: "{strategy_args: {strategy_name: fsdp_train}}" for name in ("critic", "reference")}
    metrics = run_on_ray(tmp_path / "out", **WORKERS, **models, **{"actor_train.world_size": 1})
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert all("critic/loss" in row and "train/loss/kl" in row for row in metrics)
    assert metrics[-1]["train/loss/kl"] != 0


CONTEXT = {"actor_train.strategy_args.strategy_config": "{ulysses_size: 2}"}
MEGATRON = {
    "actor_train.strategy_args.strategy_name": "megatron_train",
    "actor_train.worker_cls": "roll.rehearsal.megatron_workers.MegatronTrainWorker",
    "actor_train.use_sequence_packing": "false",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "context by fsdp_train": CONTEXT,
    "pipeline by megatron_train": {
        **MEGATRON,
        "actor_train.strategy_args.strategy_config": "{pipeline_model_parallel_size: 2}",
    },
}
"""Four ranks of a trainer: two shares of the rows, each with two ranks that part sequences, or layers."""

BESIDE = {
    **{"actor_train.world_size": 4, "old_log_probs": "recompute", "use_kl_loss": "true", "kl_loss_coef": 0.01},
    **{"reference": "{strategy_args: {strategy_name: fsdp_train}, world_size: 2}", "max_steps": 2, "save_steps": 2},
}
"""A reference on two ranks with a share each, so that rows of one batch go to both layouts, and to the update again.

Log-probs are those of trainer and reference, which do not depend on when a request reached an engine."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_part_sequences_and_layers_learn_the_same_to_the_last_bit(layout: str, tmp_path: Path) -> None:
    planes = {plane: tmp_path / plane for plane in ("driver", "workers")}
    for plane, folder in planes.items():
        metrics = run_on_ray(folder, **{**WORKERS, **BESIDE, **LAYOUTS[layout], "data_plane": plane})
        assert metrics[-1]["train/loss/kl"] > 0, "it has moved away from the reference"
    for step in (1, 2):
        one, other = (tokens(trained_on(folder, step)) for folder in planes.values())
        assert one == other, f"step {step}"
    final = "checkpoints/step=000002/hf"
    assert furthest(planes["driver"] / final, planes["workers"] / final) == 0.0


def test_large_steps_do_it_by_themselves_and_what_cannot_says_why(tmp_path: Path) -> None:
    def config(**changes: Any) -> AgenticConfig:
        return small_config(tmp_path, **{"cluster": "ray", **changes})

    assert not config().learns_elsewhere
    large = {"rollout_batch_size": 8 * 4096, "sequence_length": 256, "response_length": 8}
    assert config(**large).learns_elsewhere
    assert not config(**large, cluster="local").learns_elsewhere
    assert not config(**large, data_plane="driver").learns_elsewhere
    with pytest.raises(ConfigError, match=r"(?s)data_plane.*everything is in one process"):
        config(cluster="local", data_plane="workers")
