"""Predicted bytes against those that PyTorch's allocator hands out while the real strategies train."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from roll.generation import GenerationRequest, SamplingParams
from roll.models.loading import load_model
from roll.models.toy import TOYS
from roll.planning.activations import pass_bytes
from roll.planning.division import Division
from roll.planning.engine_memory import slot_cache_bytes
from roll.planning.shapes import shape_from, shape_of
from roll.planning.training_states import Training, states
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.supervised import SupervisedLoss

pytestmark = pytest.mark.long

BASE: dict[str, Any] = {
    **{"vocab_size": 512, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False},
}
CASES: dict[str, tuple[str, dict[str, Any], int, int, dict[str, Any]]] = {
    "small": ("qwen2", {"num_hidden_layers": 2}, 2, 64, {}),
    "normed heads": ("qwen3", {"hidden_size": 96, "head_dim": 32}, 4, 64, {}),
    "deep": ("llama", {"num_hidden_layers": 6, "hidden_size": 128, "intermediate_size": 256}, 2, 128, {}),
    "recomputed": (
        "qwen2",
        {"num_hidden_layers": 8, "hidden_size": 128, "intermediate_size": 512, "vocab_size": 2048},
        *(1, 96, {"gradient_checkpointing": True}),
    ),
    "tempered": (
        "llama",
        {"hidden_size": 256, "intermediate_size": 768, "vocab_size": 4096},
        *(2, 64, {"gradient_checkpointing": True, "temperature": 0.7}),
    ),
    "in chunks": (
        "qwen3",
        {**{"num_hidden_layers": 3, "hidden_size": 192, "intermediate_size": 512, "head_dim": 32}, "vocab_size": 8192}
        | {"num_attention_heads": 6, "tie_word_embeddings": True},
        *(4, 64, {"log_prob_chunk_size": 64}),
    ),
}
"""Family, sizes, rows and tokens of a pass, and options; each step has two passes."""


def allocated(work: Callable[[], Any]) -> tuple[int, int]:
    """Return the most bytes that were allocated at a time, and what is left of them; not what was there before."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = work()
        gc.collect()
    alive: dict[int, int] = {}
    now = most = 0
    for event in sorted(_allocations(recorded), key=lambda event: event.start_time_ns):
        fields = event.typed[1]
        if fields.alloc_size > 0:
            alive[fields.ptr] = fields.alloc_size
            now += fields.alloc_size
            most = max(most, now)
        else:
            now -= alive.pop(fields.ptr, 0)
    del kept
    return most, now


def _allocations(recorded: profile) -> list[Any]:
    """Return what the allocator handed out and got back, each with its address."""
    following, found = list(recorded.profiler.kineto_results.experimental_event_tree()), []
    while following:
        event = following.pop()
        following += event.children
        if event.tag == _EventType.Allocation:
            found.append(event)
    return found


def trainer(strategy: str, model: Any, options: TrainOptions, config: dict[str, Any]) -> Any:
    if strategy == "fsdp_train":
        return FsdpTrainStrategy(model, options)
    return DeepSpeedTrainStrategy(model, options, config=config)


def measured(strategy: str, config: dict[str, Any], name: str) -> tuple[int, Training, Any]:
    """Return the most bytes of a training step with all that lies beside it, and the plan of it."""
    family, sizes, rows, length, options = CASES[name]
    model_config = AutoConfig.for_model(family, **{**BASE, **sizes}, attn_implementation="sdpa")
    given = TrainOptions(max_tokens_per_microbatch=None, max_samples_per_microbatch=rows, **options)
    ids = torch.randint(0, model_config.vocab_size, (2 * rows, length))
    mask = torch.ones_like(ids, dtype=torch.bool)
    lengths = torch.full((2 * rows,), length)
    batch = TensorDict({"input_ids": ids, "response_mask": mask, "lengths": lengths}, batch_size=[2 * rows])
    made: list[Any] = []

    def begin() -> None:
        made.append(trainer(strategy, AutoModelForCausalLM.from_config(model_config), given, config))
        made[0].train_step(batch, SupervisedLoss())

    _, resting = allocated(begin)
    working, _ = allocated(lambda: made[0].train_step(batch, SupervisedLoss()))
    training = Training(
        strategy=strategy,
        options=config,
        shape=shape_from({**model_config.to_dict(), "model_type": family}),
        division=Division(),
        half=False,
        recomputes=given.gradient_checkpointing,
        tokens=rows * length,
        row_tokens=length,
        chunk=given.log_prob_chunk_size,
    )
    return resting + working, training, made[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_a_training_step_takes_the_bytes_that_were_predicted(name: str) -> None:
    most, training, _ = measured("fsdp_train", {}, name)
    assert states(training).total + pass_bytes(training).peak == pytest.approx(most, rel=0.1)


@pytest.mark.exhaustive
@pytest.mark.processes  # DeepSpeed starts a thread pool of its own and a process group
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
    config = {"zero_optimization": {"stage": stage}}
    _, training, strategy = measured("deepspeed_train", config, name)
    expected = states(training)
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
