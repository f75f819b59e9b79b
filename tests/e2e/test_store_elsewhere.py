"""Stores and evaluations whose tokens go from workers to workers: the same runs, and no token in the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError
from roll.pipelines.agentic import run_agentic
from roll.pipelines.reporting.review import REVIEW
from roll.pipelines.rlvr import run_rlvr
from roll.trajectories.store import read_trajectories
from tests.e2e.ray_support import assert_equal_runs, furthest, one_ray, run_on_ray, tokens, trained_on, whole_turns
from tests.e2e.rlvr_support import DATA
from tests.e2e.rlvr_support import small_config as rlvr_config
from tests.e2e.support import rows, small_config

ray = pytest.importorskip("ray")

STEPS: dict[str, Any] = {"max_steps": 2, "save_steps": 1, "eval_steps": 0, "trajectory_dump_steps": 1}
WORKERS: dict[str, Any] = {
    **{"data_plane": "workers", "actor_train.world_size": 1, "actor_infer.world_size": 1},
    **{"train_env_manager.max_env_num_per_worker": 0, "rpc_timeout": 240, **STEPS},
}
FIRST, FINAL = "checkpoints/step=000001/hf", "checkpoints/step=000002/hf"


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with one_ray(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        yield


def test_stores_of_one_machine_do_it_only_where_that_is_asked_for(tmp_path: Path) -> None:
    def config(**changes: Any) -> AgenticConfig:
        return small_config(tmp_path, **{"cluster": "ray", **changes})

    large = {"rollout_batch_size": 8 * 4096, "sequence_length": 256, "response_length": 8, "mode": "explore"}
    in_cluster = {"experience.type": "ray", "experience.name": "x"}
    assert config(**large, **in_cluster).learns_elsewhere
    for place in ({"experience.path": tmp_path}, {**in_cluster, "experience.path": tmp_path}):
        assert not config(**large, **place).learns_elsewhere
        assert config(**large, **place, data_plane="workers").learns_elsewhere
    replay = {**large, "mode": "both", "experience.fresh_share": 0.5, "experience.uses": 2}
    assert not config(**replay).learns_elsewhere and config(**replay, data_plane="workers").learns_elsewhere
    with pytest.raises(ConfigError, match=r"(?s)data_plane.*nothing is sampled to be learned from"):
        config(mode="bench", eval_steps=1, data_plane="workers", **{"experience.follow": tmp_path})


def in_ray(mode: str, name: str, **changes: Any) -> dict[str, Any]:
    """The keys of a run with a store in the cluster."""
    store = {"experience.type": "ray", "experience.name": name, "experience.ahead": 9}
    return {**WORKERS, "mode": mode, **store, **changes}


def test_two_programs_with_a_store_in_the_cluster_learn_the_same_and_see_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        made = whole_turns(patch)
        run_on_ray(tmp_path / "explore", **in_ray("explore", "shared", **{"experience.writer": "one"}))
        run_on_ray(tmp_path / "workers", **in_ray("train", "shared"))
        assert not made, "a whole turn came to the driver"
    alone = {**STEPS, "mode": "train", "experience.type": "ray", "experience.name": "shared"}
    run_agentic(small_config(tmp_path / "driver", **alone, **{"experience.reader": "another"}))
    for step in (1, 2):
        explored, one, other = (trained_on(tmp_path / each, step) for each in ("explore", "workers", "driver"))
        assert tokens(one) == tokens(other) and one == other
        assert [each[2] for each in tokens(explored)] == [each[2] for each in tokens(one)]
        assert {each.group_id.partition("/")[0] for each in one} == {"one"}
    assert furthest(tmp_path / "workers" / FINAL, tmp_path / "driver" / FINAL) == 0.0
    assert furthest(tmp_path / "workers" / FINAL, tmp_path / "workers" / FIRST) > 0.0


@pytest.mark.exhaustive
def test_workers_that_keep_groups_and_lease_them_may_die(tmp_path: Path) -> None:
    """An explorer's as it appends its second step, a trainer's as it makes its second batch."""
    for mode in ("explore", "train"):
        store = {"experience.path": tmp_path / "store", "experience.ahead": 9, "mode": mode}
        run_agentic(small_config(tmp_path / f"{mode}_alone", **STEPS, **store))
    run_on_ray(tmp_path / "explore", faults="append:2", **in_ray("explore", "hurt"))
    run_on_ray(tmp_path / "train", faults="learner:2", **in_ray("train", "hurt"))
    assert {each.name for each in tmp_path.glob("killed-*")} == {"killed-append", "killed-learner"}
    for step in (1, 2):
        assert tokens(trained_on(tmp_path / "train", step)) == tokens(trained_on(tmp_path / "train_alone", step))
    # Requests meet in other batches in engines of their own, whose sums differ in the last bits.
    assert furthest(tmp_path / "train" / FINAL, tmp_path / "train_alone" / FINAL) < 5e-5


REPLAY = {"experience.fresh_share": 0.5, "experience.uses": 2, "async_generation_ratio": 0}


@pytest.mark.exhaustive
@pytest.mark.parametrize("faults", ["", "learner:3"])
def test_a_run_that_replays_sees_no_token_and_may_lose_the_worker_that_learns(
    faults: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"max_steps": 3, "save_steps": 2, "eval_steps": 3, "trajectory_dump_steps": 1, **REPLAY}
    run_agentic(small_config(tmp_path / "alone", **keys))
    with monkeypatch.context() as patch:
        made = whole_turns(patch)
        run_on_ray(tmp_path / "out", faults=faults, **{**WORKERS, **keys})
        assert not made, "a whole turn came to the driver"
    assert (tmp_path / "killed-learner").exists() == bool(faults)
    assert_equal_runs(tmp_path / "alone", tmp_path / "out")
    name = "rollout/groups_replayed"
    ours, theirs = ([row for row in rows(tmp_path / each) if name in row] for each in ("out", "alone"))
    assert [row[name] for row in ours] == [0, 2, 2]
    for name in ("rollout/groups_left", "rollout/staleness/max", "reward/mean"):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs]), name
    assert_same_evaluations(tmp_path / "alone", tmp_path / "out")


def assert_same_evaluations(one: Path, other: Path) -> None:
    """The same episodes with the same scores and figures at each, and a review that shows some."""
    stored = {path.name: list(read_trajectories(path)) for path in (one / "trajectories").glob("val_*.parquet")}
    assert stored
    for name, episodes in stored.items():
        there = list(read_trajectories(other / "trajectories" / name))
        assert tokens(there) == tokens(episodes)
        assert [each.score for each in there] == [each.score for each in episodes]
    figures = [
        [{key: value for key, value in row.items() if key.startswith("val/")} for row in rows(folder)]
        for folder in (one, other)
    ]
    for ours, theirs in zip(*figures, strict=True):
        assert ours == pytest.approx(theirs)
    assert any(figures[0])
    assert (other / "render" / REVIEW).stat().st_size > 10_000


def test_validation_prompts_are_answered_and_answers_of_experts_join_groups_where_these_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "answers.jsonl"
    problems = [json.loads(line) for line in (DATA / "arithmetic_train.jsonl").read_text().splitlines()[:14]]
    said = "<think>so</think><answer>{}</answer>"
    written = [{"prompt": row["prompt"], "response": said.format(row["ground_truth"])} for row in problems]
    file.write_text("".join(json.dumps(row) + "\n" for row in written))
    expert = {"join": "groups", "score": "graded", "data_args": {"file_name": str(file)}}
    keys = {"policy_loss": "luffy", "expert": expert, "max_steps": 1, "save_steps": 1, "eval_steps": 1}
    keys |= {"trajectory_dump_steps": 1, "dynamic_sampling.enable": "false"}
    run_rlvr(rlvr_config(tmp_path / "alone", **keys))
    with monkeypatch.context() as patch:
        made = whole_turns(patch)
        system = {"system_envs": {"OMP_NUM_THREADS": "1"}, "rpc_timeout": 240}
        run_rlvr(rlvr_config(tmp_path / "out", **keys, **system, cluster="ray", data_plane="workers"))
        assert not made, "a whole turn came to the driver"
    for name in ("expert/rows", "expert/score", "batch/samples", "reward/mean"):
        (ours,), (theirs,) = ([row[name] for row in rows(tmp_path / each) if name in row] for each in ("out", "alone"))
        assert ours == pytest.approx(theirs), name
    assert ours and furthest(tmp_path / "alone" / FIRST, tmp_path / "out" / FIRST) < 5e-5
    assert_same_evaluations(tmp_path / "alone", tmp_path / "out")
