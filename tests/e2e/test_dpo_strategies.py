"""A whole run that learns from preferences learns the same with every train strategy and on two ranks.

Both halves of a pair stay together, the reference is the same, and ``kto`` finds its z over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.trainer_ways import LORA, WAYS, Way, assert_learned_the_same
from tests.e2e.trainer_ways import train as train_way

SHORT = {"actor_train.data_args.custom_cls.kwargs.pairs": 24, "validation.data_args.max_samples": 6}
KINDS: Mapping[str, Mapping[str, object]] = {
    "dpo, stored": {"reference_log_probs": "stored"},
    "ipo, second model": {"loss_type": "ipo", "reference_log_probs": "model"},
    "kto, adapters": {"loss_type": "kto", "reference_log_probs": "adapters", **LORA},
    "orpo": {"loss_type": "orpo"},
}
CASES = [
    ("dpo, stored", "deepspeed zero 2"),
    ("dpo, stored", "deepspeed zero 3 on two ranks"),
    ("dpo, stored", "megatron on two ranks"),
    ("ipo, second model", "deepspeed zero 1 on two ranks"),
    ("kto, adapters", "fsdp on two ranks"),
    ("kto, adapters", "megatron on two ranks"),
    ("orpo", "fsdp on two ranks"),
]
METRICS = ("train/loss", "train/grad_norm", "train/rewards/margins", "val/loss", "val/logps/chosen")


def train(folder: Path, kind: str, way: Way) -> Path:
    return train_way("start_dpo_pipeline.py", "dpo_sokoban", folder, 8, {**SHORT, **KINDS[kind]}, way)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run with ``fsdp_train`` in one process."""
    return cache(lambda kind: train(tmp_path_factory.mktemp("plain") / "out", kind, Way()))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_every_strategy_learns_preferences_as_one_process_does(
    plain: Callable[[str], Path], tmp_path: Path, way: str, kind: str
) -> None:
    found = train(tmp_path / "out", kind, WAYS[way])

    assert_learned_the_same(found, plain(kind), METRICS)
