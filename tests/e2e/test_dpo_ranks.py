"""A whole run that learns from preferences learns the same on two ranks: both halves of a pair stay together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roll.runs.stored import StoredRun
from tests.e2e.ray_support import furthest
from tests.e2e.support import ROOT, start

SHORT = {
    **{"max_steps": 2, "save_steps": 2, "eval_steps": 2, "progress": "lines", "evaluation": "null"},
    "actor_train.data_args.custom_cls.kwargs.pairs": 24,
    "validation.data_args.max_samples": 6,
    "actor_train.training_args.num_train_epochs": "null",
    "actor_train.training_args.warmup_ratio": 0,
    "actor_train.training_args.adam_epsilon": 1e-4,  # with the usual one AdamW divides noise by noise
}


def train(folder: Path, ranks: int, **changes: object) -> Path:
    given = {**SHORT, **changes, "output_dir": folder}
    given["actor_train.training_args.per_device_train_batch_size"] = 8 // ranks
    if ranks > 1:
        given |= {"cluster": "ray", "actor_train.world_size": ranks}
    script = [sys.executable, str(ROOT / "examples/start_dpo_pipeline.py"), "--config-name", "dpo_sokoban"]
    done = start([*script, *(f"{key}={value}" for key, value in given.items())], ROOT, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [
        {"reference_log_probs": "stored"},
        {"loss_type": "kto", "reference_log_probs": "adapters", "actor_train.model_args.lora_rank": 4},
    ],
    ids=["dpo", "kto with adapters"],
)
def test_two_ranks_learn_from_preferences_as_one_process_does(tmp_path: Path, changes: dict[str, object]) -> None:
    one, two = (train(tmp_path / str(ranks), ranks, **changes) for ranks in (1, 2))

    for name in ("train/loss", "train/grad_norm", "train/rewards/margins", "val/loss"):
        found, expected = (StoredRun.open(run).curve(name) for run in (two, one))
        assert found.steps == expected.steps and found.values == pytest.approx(expected.values, rel=1e-4, abs=1e-6), (
            name
        )
    final = "checkpoints/step=000002/hf"
    assert furthest(two / final, one / final) < 1e-5
