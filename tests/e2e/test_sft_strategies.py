"""A whole run of fine-tuning learns the same with every train strategy and any number of ranks, adapters included."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from roll.runs.stored import StoredRun
from tests.e2e.ray_support import furthest
from tests.e2e.support import ROOT, start

STEPS, ROWS = 2, 16
SHORT = {
    **{"max_steps": STEPS, "save_steps": STEPS, "eval_steps": STEPS, "progress": "lines", "sequence_length": 640},
    "actor_train.data_args.custom_cls.kwargs.games": 64,
    "validation.data_args.max_samples": 8,
    "evaluation": "null",
    "actor_train.training_args.num_train_epochs": "null",
    "actor_train.training_args.warmup_ratio": 0,
    "actor_train.training_args.adam_epsilon": 1e-4,  # with the usual one AdamW divides noise by noise
}
LORA = {"actor_train.model_args.lora_rank": 4}
TWO = {"cluster": "ray", "actor_train.world_size": 2}
WAYS: dict[str, tuple[list[str], dict[str, object]]] = {
    "deepspeed": (["actor_train/strategy=deepspeed_zero2"], {}),
    "fsdp on two ranks": ([], TWO),
    "deepspeed on two ranks": (["actor_train/strategy=deepspeed_zero3"], TWO),
    "megatron on two ranks": (
        [
            "actor_train/strategy=megatron_train",
            "actor_train.strategy_args.strategy_config.tensor_model_parallel_size=2",
            "+actor_train.worker_cls=megatron_worker.MegatronOnProcessors",
        ],
        TWO,
    ),
}


def train(folder: Path, words: list[str], changes: dict[str, object]) -> Path:
    # The rows of a step are those of all data ranks; the two ranks of Megatron hold one copy of the model.
    ranks = 2 if "actor_train.world_size" in changes and not any("megatron" in word for word in words) else 1
    given = {**SHORT, **changes, "output_dir": folder}
    given["actor_train.training_args.per_device_train_batch_size"] = ROWS // ranks
    script = [sys.executable, str(ROOT / "examples/start_sft_pipeline.py"), "--config-name", "sft_sokoban"]
    done = start([*script, *words, *(f"{key}={value}" for key, value in given.items())], ROOT, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """The run with ``fsdp_train`` in one process, with adapters or without."""
    return cache(lambda lora: train(tmp_path_factory.mktemp("plain") / "out", [], LORA if lora else {}))


@pytest.mark.exhaustive
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
@pytest.mark.parametrize("way", WAYS)
def test_every_strategy_imitates_as_one_process_does(
    plain: Callable[[bool], Path], tmp_path: Path, way: str, lora: bool
) -> None:
    words, changes = WAYS[way]
    found = train(tmp_path / "out", words, {**changes, **(LORA if lora else {})})

    for name in ("train/loss", "train/grad_norm", "val/loss"):
        ours, expected = (StoredRun.open(run).curve(name) for run in (found, plain(lora)))
        assert ours.steps == expected.steps and ours.values == pytest.approx(expected.values, rel=1e-5), name
    final = f"checkpoints/step={STEPS:06d}/hf"
    assert furthest(found / final, plain(lora) / final) < 1e-5
