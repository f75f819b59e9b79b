"""Several stages on Ray are those of one process: demonstrations, sampling, pairs of what was sampled, and rewards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.config import load
from roll.config.staged import StagedConfig
from roll.pipelines.staged import run_stages
from roll.runs.outcome import State
from roll.runs.stored import StoredRun
from tests.e2e.ray_support import furthest, one_ray

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.exhaustive, pytest.mark.processes]

SMALL = {
    "pretrain": "toy",
    "progress": "none",
    "eval_steps": 0,
    "save_steps": 0,
    "stages.sft.max_steps": 2,
    "stages.sft.evaluation": None,
    "stages.sft.actor_train.data_args.custom_cls.kwargs.games": 48,
    "stages.play.rollout_batch_size": 32,
    "stages.play.train_env_manager.env_groups": 4,
    "stages.dpo.max_steps": 2,
    "stages.dpo.evaluation": None,
    "stages.rl.max_steps": 1,
    "stages.rl.rollout_batch_size": 16,
    "stages.rl.train_env_manager.env_groups": 2,
    "actor_train.training_args.adam_epsilon": 1e-4,  # with the usual one AdamW divides noise by noise
}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with one_ray():
        yield


def run(folder: Path, **changes: object) -> StoredRun:
    config = load("three_stages", overrides={**SMALL, "output_dir": str(folder), **changes})
    assert isinstance(config, StagedConfig)
    run_stages(config)
    return StoredRun.open(folder)


def test_stages_on_ray_are_those_of_one_process(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone")
    together = run(tmp_path / "ray", cluster="ray")

    assert together.outcome is not None and together.outcome.state is State.FINISHED
    for stage, steps in (("sft", 2), ("dpo", 2), ("rl", 1)):
        final = f"{stage}/checkpoints/step={steps:06d}/hf"
        assert furthest(alone.folder / final, together.folder / final) < 1e-4, stage
