"""A whole run of fine-tuning learns the same with every train strategy and any number of ranks, adapters included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.trainer_ways import LORA, WAYS, Way, assert_learned_the_same
from tests.e2e.trainer_ways import train as train_way

SHORT = {
    "sequence_length": 640,
    "actor_train.data_args.custom_cls.kwargs.games": 64,
    "validation.data_args.max_samples": 8,
}

NAMES = {False: "all weights", True: "adapters"}
CASES = [
    ("deepspeed zero 2", True),
    ("fsdp on two ranks", False),
    ("deepspeed zero 3 on two ranks", False),
    ("megatron on two ranks", True),
]
"""Every way once; with adapters one of each library, as those of each on two ranks are tested without a run."""


def train(folder: Path, lora: bool, way: Way, variables: Mapping[str, str] | None = None) -> Path:
    changes = {**SHORT, **(LORA if lora else {})}
    return train_way("start_sft_pipeline.py", "sft_sokoban", folder, 16, changes, way, variables or {})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """The run with ``fsdp_train`` in one process, with adapters or without."""
    return cache(lambda lora: train(tmp_path_factory.mktemp("plain") / "out", lora, Way()))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "lora"), CASES, ids=lambda one: one if isinstance(one, str) else NAMES[one])
def test_every_strategy_imitates_as_one_process_does(
    plain: Callable[[bool], Path], ray_machine: dict[str, str], tmp_path: Path, way: str, lora: bool
) -> None:
    found = train(tmp_path / "out", lora, WAYS[way], ray_machine)

    assert_learned_the_same(found, plain(lora), ("train/loss", "train/grad_norm", "val/loss"))
