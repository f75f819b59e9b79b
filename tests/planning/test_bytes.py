"""Predicted bytes against those that PyTorch's allocator hands out while the real strategies train."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import pytest

from roll.generation import GenerationRequest, SamplingParams
from roll.models.loading import load_model
from roll.models.toy import TOYS
from roll.planning.activations import step_bytes
from roll.planning.engine_memory import slot_cache_bytes
from roll.planning.shapes import shape_of
from roll.planning.training_states import states
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.planning.measuring import CASES, begun, measured, plan_of

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def what_lasts_is_no_garbage() -> None:
    """Each of the collections here would look at all that was imported: a run of other tests lets it look again."""
    gc.collect()
    gc.freeze()


def zero(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_a_training_step_takes_the_bytes_that_were_predicted(name: str) -> None:
    most, training, _ = measured("fsdp_train", {}, name, FsdpTrainStrategy)
    assert step_bytes(training) == pytest.approx(most, rel=0.1)


@pytest.mark.exhaustive
@pytest.mark.processes  # DeepSpeed starts a thread pool of its own and a process group
@pytest.mark.parametrize(("name", "stage"), zip(CASES, [0, 1, 3] * 2, strict=True))
def test_a_step_of_deepspeed_takes_the_bytes_that_were_predicted(name: str, stage: int) -> None:
    make = partial(DeepSpeedTrainStrategy, config=zero(stage))
    most, training, strategy = measured("deepspeed_train", zero(stage), name, make)
    strategy.close()
    assert step_bytes(training) == pytest.approx(most, rel=0.1)


@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("small", 3),
        ("normed heads", 1),
        ("deep", 2),
        ("recomputed", 0),
        ("recomputed", 3),
        ("tempered", 2),
        ("in chunks", 3),
    ],
)
def test_the_tensors_that_deepspeed_keeps_are_those_that_were_predicted(name: str, stage: int) -> None:
    strategy, _ = begun(name, partial(DeepSpeedTrainStrategy, config=zero(stage)))
    expected = states(plan_of("deepspeed_train", zero(stage), name))
    weights = {tensor.untyped_storage().data_ptr(): tensor for tensor in strategy._memory._weights()}
    kept = {tensor.untyped_storage().data_ptr(): tensor for tensor in strategy._memory._states()}
    optimizer = sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in weights)
    strategy.close()
    assert optimizer == pytest.approx(expected.optimizer, rel=0.1)


def test_the_cache_of_hf_infer_takes_the_bytes_that_were_predicted() -> None:
    async def cached() -> tuple[int, int, int]:
        engine = HfInferStrategy(load_model("toy"), max_slots=8, max_length=256)
        sampling = SamplingParams(max_new_tokens=8)
        request = GenerationRequest(request_id="one", prompt_ids=list(range(3, 40)), sampling=sampling)
        await engine.generate(request)
        cache = engine._engine.runner.cache
        held = sum(t.numel() * t.element_size() for layer in cache.slot_layers for t in (layer.keys, layer.values))
        slots, length = cache.slots, cache.length
        await engine.close()
        return held, slots, length

    held, slots, length = asyncio.run(cached())
    assert held == slot_cache_bytes(shape_of(str(TOYS["toy"])), slots, length, 4)
