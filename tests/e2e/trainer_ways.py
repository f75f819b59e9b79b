"""Ways to train the same run: every train strategy, one rank and two, and what a whole run with each leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roll.runs.stored import StoredRun
from tests.e2e.support import ROOT, start

STEPS = 2
SHORT: Mapping[str, object] = {
    **{"max_steps": STEPS, "save_steps": STEPS, "eval_steps": STEPS, "progress": "lines", "evaluation": "null"},
    "actor_train.training_args.num_train_epochs": "null",
    "actor_train.training_args.warmup_ratio": 0,
    "actor_train.training_args.adam_epsilon": 1e-4,  # with the usual one AdamW divides noise by noise
}
"""Two steps with one evaluation before and one after them, and numbers that rounding does not change."""

LORA: Mapping[str, object] = {"actor_train.model_args.lora_rank": 4}
TWO: Mapping[str, object] = {"cluster": "ray", "actor_train.world_size": 2}


@dataclass(frozen=True)
class Way:
    """A train strategy with a number of ranks.

    Attributes:
        words: Words of the command line.
        changes: Keys.
        copies: Ranks that each take a share of the rows; those of Megatron hold one copy of the model.
    """

    words: Sequence[str] = ()
    changes: Mapping[str, object] = field(default_factory=dict)
    copies: int = 1


WAYS: Mapping[str, Way] = {
    "deepspeed zero 1 on two ranks": Way(
        ["actor_train/strategy=deepspeed_zero2", "actor_train.strategy_args.strategy_config.zero_optimization.stage=1"],
        TWO,
        2,
    ),
    "deepspeed zero 2": Way(["actor_train/strategy=deepspeed_zero2"]),
    "fsdp on two ranks": Way((), TWO, 2),
    "deepspeed zero 3 on two ranks": Way(["actor_train/strategy=deepspeed_zero3"], TWO, 2),
    "megatron on two ranks": Way(
        [
            "actor_train/strategy=megatron_train",
            "actor_train.strategy_args.strategy_config.tensor_model_parallel_size=2",
            "+actor_train.worker_cls=roll.rehearsal.megatron_workers.MegatronTrainWorker",
        ],
        TWO,
    ),
}
"""What is to learn the same as ``fsdp_train`` in one process."""


def train(
    program: str,
    preset: str,
    folder: Path,
    rows: int,
    changes: Mapping[str, object],
    way: Way,
    variables: Mapping[str, str],
) -> Path:
    """Run a program to its end and return its folder.

    Args:
        program: A file of ``examples``.
        preset: The configuration.
        folder: Where it writes.
        rows: Rows of a step.
        changes: Keys.
        way: How it is trained.
        variables: More variables of its environment: which Ray it joins.
    """
    given = {**SHORT, **changes, **way.changes, "output_dir": folder}
    given["actor_train.training_args.per_device_train_batch_size"] = rows // way.copies
    script = [sys.executable, str(ROOT / "examples" / program), "--config-name", preset]
    done = start(
        [*script, *way.words, *(f"{key}={value}" for key, value in given.items())], ROOT, timeout=400, **variables
    )
    assert done.returncode == 0, f"it ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return folder


def assert_learned_the_same(found: Path, expected: Path, names: Sequence[str], rel: float = 1e-5) -> None:
    """The same metrics at every step, and the same weights in the end."""
    for name in names:
        ours, theirs = (StoredRun.open(run).curve(name) for run in (found, expected))
        assert theirs.values, f"{name} was not reported"
        assert ours.steps == theirs.steps and ours.values == pytest.approx(theirs.values, rel=rel, abs=1e-6), name
    one, other = (weights(run) for run in (found, expected))
    assert one.keys() == other.keys()
    furthest = max(float((one[name].float() - other[name].float()).abs().max()) for name in one)
    assert furthest < 1e-5


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights that a run ended with, by name."""
    folder = run / f"checkpoints/step={STEPS:06d}/hf"
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
