"""Small runs on Ray, on this machine's processors, and what they leave behind."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.pipelines.agentic import run_agentic
from roll.trajectories import sealed
from roll.trajectories.model import Trajectory, Turn
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e.support import HERE, small_config
from tests.sharing import shared_by_group

RAY = {
    "cluster": "ray",
    "eval_steps": 0,
    "actor_train.world_size": 2,
    "actor_infer.world_size": 2,
    "train_env_manager.max_env_num_per_worker": 8,
    "rpc_timeout": 120,
    "weight_sync.timeout": 30,
}
"""Two train ranks, two engines, two workers with environments."""


STEPS = 3

AGENTIC = {"max_steps": STEPS, "save_steps": 2, "eval_steps": 0, "trajectory_dump_steps": 1}
"""Three steps, with a checkpoint after the second."""


def run_on_ray(folder: Path, faults: str = "", **changes: Any) -> list[dict[str, Any]]:
    """Run the same on Ray; returns its metrics by step."""
    modules = {"env_modules": "[ray_sabotage]"} if faults else {}
    environment = {
        "system_envs.OMP_NUM_THREADS": "1",
        "system_envs.ROLL_TEST_FAULTS": f"'{faults}'",
        "system_envs.ROLL_TEST_FOLDER": f"'{folder.parent}'",
    }
    run_agentic(small_config(folder, **{**AGENTIC, **RAY, **modules, **environment, **changes}))
    lines = (folder / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_equal_runs(one: Path, other: Path) -> None:
    """The same episodes at every step, and the same policy in the end."""
    for step in range(1, STEPS + 1):
        assert tokens(trained_on(one, step)) == tokens(trained_on(other, step)), f"step {step}"
    final = f"checkpoints/step={STEPS:06d}/hf"
    assert furthest(one / final, other / final) < 1e-5


def trained_on(output_dir: Path, step: int) -> list[Trajectory]:
    """The trajectories of a step."""
    return list(read_trajectories(trajectory_path(output_dir, step, "train")))


def tokens(trajectories: list[Trajectory]) -> list[tuple[str, int, list[list[int]]]]:
    """What was sampled: group, member, tokens of each turn."""
    return [(t.group_id, t.episode, [turn.completion_ids for turn in t.turns]) for t in trajectories]


def furthest(first: Path, second: Path) -> float:
    """The largest difference between two policies saved in Hugging Face format."""
    one, other = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (first, second))
    assert one.keys() == other.keys()
    return max(float(torch.max(torch.abs(one[name] - other[name]))) for name in one)


@contextmanager
def one_ray() -> Iterator[None]:
    """Ray with sixteen processors and one device in its books, for all runs of a file, and of the files of its group.

    A start takes ten seconds of a processor.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(str(HERE))
        shared_by_group(_ray)
        yield


@contextmanager
def _ray() -> Iterator[None]:
    import ray

    from roll.distributed.ray_starting import start_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
        start_here(num_cpus=16, num_gpus=1, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def whole_turns(monkeypatch: pytest.MonkeyPatch) -> list[Turn]:
    """A list that gets every turn that is made whole in this process, where nothing may be fetched from elsewhere."""

    def nothing(*arguments: Any) -> Any:
        raise AssertionError("the driver fetched what lies elsewhere")

    made: list[Turn] = []
    begin = Turn.__init__
    monkeypatch.setattr(sealed, "_open", nothing)
    monkeypatch.setattr(
        Turn, "__init__", lambda turn, *given, **named: made.append(turn) or begin(turn, *given, **named)
    )
    return made
