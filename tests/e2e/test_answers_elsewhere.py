"""Answers whose tokens go from workers that grade to one that learns: the same runs, and no token in the driver."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.distributed import plan_placement
from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from roll.trajectories import sealed
from tests.e2e import support
from tests.e2e.ray_support import furthest, one_ray, tokens, trained_on, whole_turns
from tests.e2e.rlvr_support import small_config
from tests.e2e.test_mixed import MIXED

ray = pytest.importorskip("ray")

STEPS = 3
RUN: dict[str, Any] = {"max_steps": STEPS, "save_steps": 2, "eval_steps": 0, "trajectory_dump_steps": 1}
"""Three steps, with a checkpoint after the second; groups whose scores do not differ are replaced."""

ON_RAY: dict[str, Any] = {
    **{"cluster": "ray", "data_plane": "workers", "rewards.math_rule.world_size": 2},
    **{"rpc_timeout": 240, "weight_sync.timeout": 60},
}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with one_ray():
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process."""
    folder = tmp_path_factory.mktemp("alone") / "out"
    run_rlvr(small_config(folder, **RUN))
    return folder


def run(folder: Path, faults: str = "", **changes: Any) -> list[dict[str, Any]]:
    """Run it on Ray; returns its metrics by step."""
    system = {"OMP_NUM_THREADS": "1", "ROLL_TEST_FAULTS": faults, "ROLL_TEST_FOLDER": str(folder.parent)}
    modules = {"algorithm_modules": ["ray_sabotage"]} if faults else {}
    run_rlvr(small_config(folder, **{**RUN, **ON_RAY, **modules, "system_envs": system, **changes}))
    lines = (folder / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_same(one: Path, other: Path, steps: int = STEPS) -> None:
    """The same answers with the same scores at every step, and the same policy in the end."""
    for step in range(1, steps + 1):
        ours, theirs = (trained_on(folder, step) for folder in (one, other))
        assert tokens(ours) == tokens(theirs), f"step {step}"
        assert [answer.score for answer in ours] == [answer.score for answer in theirs]
        assert [answer.conversation for answer in ours] == [answer.conversation for answer in theirs]
    final = f"checkpoints/step={steps:06d}/hf"
    # Requests meet in other batches, whose sums differ in the last bits, and Adam makes more of small gradients.
    assert furthest(one / final, other / final) < 5e-5


@pytest.mark.exhaustive
def test_the_run_is_that_of_one_process_and_the_driver_sees_no_token(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roll.distributed.ray_group import RayCalls

    made = whole_turns(monkeypatch)
    passed: Counter[str] = Counter()
    call, opened = RayCalls._call_by_post, RayCalls._opened

    async def counted(calls: RayCalls, rank: int, method: str, packed: Any) -> Any:
        passed[f"calls of {method}"] += 1
        passed[method] += len(packed.data) + sum(len(memoryview(one)) for one in packed.buffers)
        return await call(calls, rank, method, packed)

    def counted_back(calls: RayCalls, answer: Any, rank: int, method: str) -> Any:
        if method == "answer":
            passed[method] += len(answer.data) + sum(len(memoryview(one)) for one in answer.buffers)
        return opened(calls, answer, rank, method)

    monkeypatch.setattr(RayCalls, "_call_by_post", counted)
    monkeypatch.setattr(RayCalls, "_opened", counted_back)
    metrics = run(tmp_path / "out", **{"actor_train.world_size": 2})
    assert not made, "a whole turn came to the driver"
    assert_same(alone, tmp_path / "out")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert passed["calls of answer"] >= STEPS * 16 and not passed["calls of grade"]
    each = passed["answer"] / passed["calls of answer"]
    print(f"{each:.0f} bytes per answer, there and back")
    assert each < 1500, "the same however long prompt and answer are"
    for ours, theirs in zip(metrics, [json.loads(line) for line in _lines(alone)], strict=True):
        for name in ("reward/mean", "rollout/prompts_consumed", "rollout/response_length/mean", "data/epoch"):
            assert ours.get(name) == pytest.approx(theirs.get(name)), name


def _lines(folder: Path) -> list[str]:
    return (folder / "logs" / "metrics.jsonl").read_text().splitlines()


@pytest.mark.exhaustive
def test_losing_a_grader_takes_no_answer_along_and_losing_what_learns_costs_the_steps_since_a_checkpoint(
    alone: Path, tmp_path: Path
) -> None:
    metrics = run(tmp_path / "out", faults="put:12,learner:3")
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-put", "killed-learner"}
    assert_same(alone, tmp_path / "out")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    assert metrics[1]["cluster/worker_restarts"] == 1


@pytest.mark.exhaustive
def test_answers_that_come_to_the_driver_from_workers_that_grade_give_the_same(alone: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", **{"data_plane": "driver", "actor_train.world_size": 2, "actor_infer.world_size": 2})
    assert_same(alone, tmp_path / "out")


@pytest.mark.exhaustive
def test_what_compares_texts_of_a_group_fetches_them(tmp_path: Path) -> None:
    """And prompts that are chosen by what was learned from them, with a greedy answer beside each group."""
    changes = {
        **{"group_reward": {"distinct": 0.5}, "actor_train.data_args.selector": "learning_progress"},
        **{"adv_estimator": "remax", "max_steps": 2},
    }
    run_rlvr(small_config(tmp_path / "alone", **{**RUN, **changes}))
    run(tmp_path / "out", **changes)
    assert_same(tmp_path / "alone", tmp_path / "out", steps=2)


@pytest.mark.exhaustive
def test_prompts_beside_environments_are_answered_elsewhere_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {**MIXED, "max_steps": 2, "eval_steps": 0, "trajectory_dump_steps": 1}
    del changes["output_dir"]
    run_agentic(support.small_config(tmp_path / "alone", **changes))
    monkeypatch.setattr(sealed, "_open", lambda parcel: pytest.fail("the driver fetched what lies elsewhere"))
    on_ray = {"cluster": "ray", "data_plane": "workers", "system_envs.OMP_NUM_THREADS": "1", "rpc_timeout": 240}
    run_agentic(support.small_config(tmp_path / "out", **changes, **on_ray))
    assert_same(tmp_path / "alone", tmp_path / "out", steps=2)


@pytest.mark.exhaustive
def test_rows_of_experts_join_there_also_when_a_run_goes_on(tmp_path: Path) -> None:
    worked = {"path": "roll.models.toy.worked_exercises", "name": "WorkedExercises", "kwargs": {"problems": 7}}
    expert = {"expert_data_ratio": 0.3, "data_args": {"custom_cls": worked}}
    changes: dict[str, Any] = {"policy_loss": "mix", "expert": expert, "dynamic_sampling.enable": "false"}
    run_rlvr(small_config(tmp_path / "alone", **{**RUN, **changes}))
    metrics = run(tmp_path / "out", faults="learner:3", **changes)
    assert (tmp_path / "killed-learner").exists()
    assert_same(tmp_path / "alone", tmp_path / "out")
    assert [row["expert/epoch"] for row in metrics] == pytest.approx([8 / 7, 16 / 7, 24 / 7])


def test_large_steps_do_it_by_themselves_and_what_cannot_says_why(tmp_path: Path) -> None:
    def config(**changes: Any) -> Any:
        return small_config(tmp_path, **{"cluster": "ray", **changes})

    assert not config().learns_elsewhere
    large = {"rollout_batch_size": 4096, "num_return_sequences_in_group": 8, "sequence_length": 144}
    assert config(**large).learns_elsewhere
    assert not config(**large, cluster="local").learns_elsewhere
    assert not config(**large, data_plane="driver").learns_elsewhere
    assert config(data_plane="workers").learns_elsewhere
    assert "learner" in plan_placement(config(data_plane="workers")).roles
    assert "learner" not in plan_placement(config()).roles
    custom = {"actor_train.data_args.custom_cls": {"path": "rows.py", "name": "Rows"}}
    assert not config(**large, **custom).learns_elsewhere, "they may be on this machine alone"
    assert config(**custom, data_plane="workers").learns_elsewhere
    with pytest.raises(ConfigError, match=r"(?s)data_plane.*everything is in one process"):
        config(cluster="local", data_plane="workers")
