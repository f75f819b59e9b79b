"""The bytes that a plan predicts for trainers on two ranks, against those that PyTorch's allocator hands out."""

from __future__ import annotations

import importlib.util

import pytest
from byte_runs import zero_step
from megatron_support.ranks import ranks
from megatron_support.scenarios import PIPELINE, SEQUENCE, TENSOR
from rank_pool import RankPool

from roll.planning.activations import step_bytes
from roll.planning.training_states import FP32, Training, numbers_of
from tests.planning.measuring import CASES
from tests.rings import exhaustive_but

WAYS = {"tensor": TENSOR, "sequence": SEQUENCE, "pipeline": PIPELINE, "data": {}}
# Gloo gathers the weights of a distributed optimiser into a copy of them, which NCCL does not.
WHOLE = {"use_distributed_optimizer": False}
EACH = [*zip(CASES, [*WAYS, "tensor", "pipeline"], strict=True), ("in chunks", "tensor")]
"""Every size, and every way."""


def check(found: list[tuple[int, Training]], share: float, besides: int = 0) -> None:
    """Expect the prediction to be right up to a share of it, where there may be so many bytes besides."""
    predicted = step_bytes(found[0][1])
    assert predicted * (1 - share) <= max(most for most, _ in found) <= (predicted + besides) * (1 + share)


@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
)
@pytest.mark.parametrize("case", exhaustive_but(EACH, EACH[0]), ids=" ".join)
def test_a_short_step_of_megatron_takes_what_was_predicted(case: tuple[str, str]) -> None:
    """Short, as the layers of the CPU keep more activations than those of Transformer Engine, which a plan means."""
    name, way = case
    check(ranks(2).run("bytes_of_a_step", name, {**WHOLE, **WAYS[way]}), 0.1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "stage"), [*zip(CASES, [1, 2] * 3, strict=True)])
def test_a_step_of_deepspeed_takes_about_what_was_predicted(two: RankPool, name: str, stage: int) -> None:
    """Whether Gloo still holds a copy of gradients, which NCCL has none of, is a matter of its threads."""
    found = two.run(zero_step, name, stage)
    check(found, 0.15, besides=FP32 * numbers_of(found[0][1])[1])
