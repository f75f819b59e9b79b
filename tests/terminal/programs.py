"""The command lines of all programs, at the smallest size that goes through every stage."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
EXAMPLES = ROOT / "examples"
DATA = ROOT / "roll" / "presets" / "data"

AGENTIC = {
    "max_steps": 1,
    "output_dir": "out",
    "train_env_manager.env_groups": 2,
    "train_env_manager.group_size": 2,
    "rollout_batch_size": 4,
    "val_env_manager.env_groups": 2,
    "val_batch_size": 2,
    "max_actions_per_traj": 2,
}
RLVR = {
    "max_steps": 1,
    "output_dir": "out",
    "rollout_batch_size": 2,
    "num_return_sequences_in_group": 2,
    "actor_train.data_args.file_name": DATA / "arithmetic_train.jsonl",
    "actor_train.data_args.max_samples": 4,
    "validation.data_args.file_name": DATA / "arithmetic_val.jsonl",
    "validation.data_args.max_samples": 2,
}
EVALUATION = {
    "output_dir": "out",
    "validation.data_args.file_name": DATA / "arithmetic_val.jsonl",
    "validation.data_args.max_samples": 2,
}
PROGRAMS = {
    "agentic": ("start_agentic_pipeline.py", ("--config-name", "sokoban"), AGENTIC),
    "rlvr": ("start_rlvr_pipeline.py", ("--config-name", "rlvr_math"), RLVR),
    "evaluation": ("start_evaluation.py", ("--config-name", "eval_math"), EVALUATION),
    "custom_env": ("custom_env.py", (), AGENTIC),
    "custom_algorithm": ("custom_algorithm.py", (), AGENTIC),
}


def command(name: str, *more: str) -> list[str]:
    """The command line of a small run; ``more`` is added to it."""
    script, options, small = PROGRAMS[name]
    overrides = [f"{key}={value}" for key, value in small.items()]
    return [sys.executable, str(EXAMPLES / script), *options, *overrides, *more]


def held(place: str, *program: str) -> list[str]:
    """The command line of a program that waits where it calls ``place`` (``module:function``)."""
    return [sys.executable, str(HERE / "held.py"), place, *program]
