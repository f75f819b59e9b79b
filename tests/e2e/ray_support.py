"""Small runs on Ray, on this machine's processors, and what they leave behind."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from roll.trajectories.model import Trajectory
from roll.trajectories.store import read_trajectories, trajectory_path

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
