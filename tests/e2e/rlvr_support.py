"""A small RLVR run on arithmetic: started as a person starts it, or in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from roll.config import RLVRConfig, load
from tests.e2e.support import ROOT, composed

SCRIPT = ROOT / "examples" / "start_rlvr_pipeline.py"
EVALUATION = ROOT / "examples" / "start_evaluation.py"
DATA = ROOT / "roll" / "presets" / "data"

SMALL = {
    "max_steps": 4,
    "save_steps": 2,
    "eval_steps": 2,
    "rollout_batch_size": 4,
    "num_return_sequences_in_group": 4,
    "actor_train.data_args.file_name": DATA / "arithmetic_train.jsonl",
    "actor_train.training_args.learning_rate": 1e-4,
    "actor_train.training_args.lr_scheduler_type": "constant",
    "actor_train.data_args.max_samples": 14,
    "validation.data_args.file_name": DATA / "arithmetic_val.jsonl",
    "validation.data_args.max_samples": 6,
    "dynamic_sampling.enable": "true",
}
"""Four steps over fourteen prompts with replacement of groups, so that an epoch ends within the run."""


def command(*arguments: str, **changes: Any) -> list[str]:
    """The command line of a small run; ``changes`` are overrides with ``__`` for dots."""
    overrides = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
    shown = [f"{key}={value}" for key, value in overrides.items()]
    return [sys.executable, str(SCRIPT), "--config-name", "rlvr_math", *arguments, *shown]


def evaluation_command(**changes: Any) -> list[str]:
    """The command line of a small evaluation."""
    overrides = {"validation__data_args__file_name": DATA / "arithmetic_val.jsonl", **changes}
    shown = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    return [sys.executable, str(EVALUATION), "--config-name", "eval_math", *shown]


def small_config(output_dir: Path, **changes: Any) -> RLVRConfig:
    """The same small run for this process; values may be mappings and lists too."""
    overrides: dict[str, Any] = {**SMALL, "output_dir": output_dir, "progress": "none"}
    overrides |= {key.replace("__", "."): value for key, value in changes.items()}
    config = composed("rlvr_math")
    OmegaConf.set_struct(config, False)
    for key, value in overrides.items():
        plain = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        OmegaConf.update(config, key, str(plain) if isinstance(plain, Path) else plain, merge=False)
    return load(config, kind=RLVRConfig)
