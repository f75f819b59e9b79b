"""A small Sokoban run: started as a person starts it, or in this process, and what it leaves behind."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from roll.config import AgenticConfig, load
from tests import programs

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "start_agentic_pipeline.py"
HERE = Path(__file__).resolve().parent

# Another policy than the packaged one can be named, to try the pipeline with it.
PRETRAIN = os.environ.get("ROLL_TEST_PRETRAIN", "toy")

SMALL = {
    "pretrain": PRETRAIN,
    "max_steps": 4,
    "save_steps": 2,
    "eval_steps": 2,
    "train_env_manager.env_groups": 4,
    "train_env_manager.group_size": 4,
    "rollout_batch_size": 16,
    "val_env_manager.env_groups": 6,
    "val_batch_size": 6,
    "mini_batches": 2,
    "max_actions_per_traj": 3,
    # The job's own rate decays to zero with its last step: these runs are stopped and continued.
    "actor_train.training_args.learning_rate": 3e-4,
    "actor_train.training_args.lr_scheduler_type": "constant_with_warmup",
}
"""A run of four steps, with a checkpoint and an evaluation after every second."""

UNREPRODUCIBLE = ("time/", "throughput/", "weight_sync/", "generation/")


def environment(**variables: str) -> dict[str, str]:
    """The environment of a run: one thread, no network, modules of this folder importable."""
    path = f"{HERE}{os.pathsep}{ROOT}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **variables}


def command(*arguments: str, config: str = "sokoban", **changes: Any) -> list[str]:
    """The command line of a small run; ``changes`` are overrides with ``__`` for dots."""
    overrides = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
    shown = [f"{key}={value}" for key, value in overrides.items()]
    return [sys.executable, str(SCRIPT), "--config-name", config, *arguments, *shown]


def start(
    words: list[str], cwd: Path, timeout: float = 240, *, cold: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: a script of this interpreter by a fork of the warm process, unless ``cold``."""
    if not cold and programs.can_fork(words):
        return programs.run(words, cwd, environment(**variables), timeout)
    return subprocess.run(words, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout)


@contextmanager
def beside(words: list[str], cwd: Path, log: Path, **variables: str) -> Iterator[programs.WarmProgram]:
    """Let a program run, forked from the warm process, while others do; what it says goes to ``log``."""
    with log.open("w") as said, open(os.devnull) as nothing:
        streams = [nothing.fileno(), said.fileno(), said.fileno()]
        program = programs.fork(words, cwd, environment(**variables), streams)
        try:
            yield program
        finally:
            program.kill()
            program.wait()


def small_config(output_dir: Path, preset: str = "sokoban", **changes: Any) -> AgenticConfig:
    """The same small run for this process; ``changes`` are overrides with ``__`` for dots."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = {**SMALL, "output_dir": output_dir, "progress": "none"}
    overrides |= {key.replace("__", "."): value for key, value in changes.items()}
    config = composed(preset)
    for change in OverridesParser.create().parse_overrides(
        [f"{key}={_quoted(each)}" for key, each in overrides.items()]
    ):
        OmegaConf.update(config, change.key_or_group, change.value(), merge=True, force_add=True)
    return load(config)


def composed(preset: str) -> DictConfig:
    """A configuration that ships, to be changed: composed once, which takes longer than all that is done to it."""
    return copy.deepcopy(_composed(preset))


@cache
def _composed(preset: str) -> DictConfig:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(ROOT / "roll" / "presets" / "config"), version_base="1.3"):
        return compose(preset)


def _quoted(value: Any) -> str:
    """Quote a path with "=" in it for Hydra's grammar, as the command line does by itself."""
    return f"'{value}'" if isinstance(value, Path) else str(value)


def rows(output_dir: Path) -> list[dict[str, Any]]:
    """The metrics of a run without those that depend on the clock."""
    lines = (output_dir / "logs" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(UNREPRODUCIBLE)} for line in lines]


def train_state(output_dir: Path, step: int) -> dict[str, Any]:
    """Weights, optimiser and schedule of a checkpoint."""
    return torch.load(output_dir / "checkpoints" / f"step={step:06d}" / "train_state.pt", weights_only=True)


def same(left: Any, right: Any) -> bool:
    """Whether two nested states are equal bit for bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
