"""A whole run with a teacher learns the same wherever student and teacher are: DeepSpeed, Megatron, two ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.trainer_ways import WAYS, Way, assert_learned_the_same
from tests.e2e.trainer_ways import train as train_way

SHORT = {
    "pipeline": "distill_rows",
    "pretrain": "toy_shallow",
    "+teacher.model_args.model_name_or_path": "toy_sokoban",
    "+divergence": "jsd",
    "+distill_loss_weight": 0.8,
    "sequence_length": 640,
    "actor_train.data_args.custom_cls.kwargs.games": 64,
    "validation.data_args.max_samples": 8,
}
TEACHERS: Mapping[str, Mapping[str, object]] = {
    "in one process": {"+teacher.strategy_args.strategy_name": "hf_infer"},
    "deepspeed": {"+teacher.strategy_args.strategy_name": "deepspeed_infer"},
    "megatron, two ranks": {
        "+teacher.strategy_args.strategy_name": "megatron_infer",
        "+teacher.strategy_args.strategy_config.tensor_model_parallel_size": 2,
        "+teacher.worker_cls": "megatron_worker.MegatronScoresOnProcessors",
        "+teacher.world_size": 2,
    },
}
CASES = [("deepspeed zero 3 on two ranks", "deepspeed"), ("megatron on two ranks", "megatron, two ranks")]
METRICS = ("train/loss", "train/grad_norm", "train/distill/divergence", "train/nll", "val/loss")


def train(folder: Path, way: Way, teacher: str) -> Path:
    return train_way("start_distill_pipeline.py", "sft_sokoban", folder, 16, {**SHORT, **TEACHERS[teacher]}, way)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with ``fsdp_train`` and its teacher in one process."""
    return train(tmp_path_factory.mktemp("plain") / "out", Way(), "in one process")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("way", "teacher"), CASES)
def test_a_student_learns_from_its_teacher_as_in_one_process(
    plain: Path, tmp_path: Path, way: str, teacher: str
) -> None:
    assert_learned_the_same(train(tmp_path / "out", WAYS[way], teacher), plain, METRICS)
