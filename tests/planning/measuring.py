"""A training step of small models, and the bytes that PyTorch's allocator hands out for it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from roll.planning.division import Division
from roll.planning.shapes import shape_from
from roll.planning.training_states import Training
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.supervised import SupervisedLoss

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
        {**{"hidden_size": 192, "intermediate_size": 512, "head_dim": 32}, "vocab_size": 8192}
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


def begun(
    name: str, make: Callable[[PreTrainedModel, TrainOptions], Any], pass_size: tuple[int, int] | None = None
) -> tuple[Any, TensorDict]:
    """Return a strategy of a case that has taken a step, and the batch of that."""
    family, sizes, rows, length, options = CASES[name]
    rows, length = pass_size or (rows, length)
    model_config = AutoConfig.for_model(family, **{**BASE, **sizes}, attn_implementation="sdpa")
    given = TrainOptions(max_tokens_per_microbatch=None, max_samples_per_microbatch=rows, **options)
    ids = torch.randint(0, model_config.vocab_size, (2 * rows, length))
    mask = torch.ones_like(ids, dtype=torch.bool)
    lengths = torch.full((2 * rows,), length)
    batch = TensorDict({"input_ids": ids, "response_mask": mask, "lengths": lengths}, batch_size=[2 * rows])
    strategy = make(AutoModelForCausalLM.from_config(model_config), given)
    strategy.train_step(batch, SupervisedLoss())
    return strategy, batch


def plan_of(
    strategy: str, config: dict[str, Any], name: str, ranks: int = 1, pass_size: tuple[int, int] | None = None
) -> Training:
    """Return the plan of a case; arguments as for :func:`measured`."""
    family, sizes, rows, length, options = CASES[name]
    rows, length = pass_size or (rows, length)
    return Training(
        strategy=strategy,
        options=config,
        shape=shape_from({**AutoConfig.for_model(family, **{**BASE, **sizes}).to_dict(), "model_type": family}),
        division=Division.of(strategy, config, ranks),
        half=False,
        recomputes=options.get("gradient_checkpointing", False),
        tokens=rows * length,
        row_tokens=length,
        chunk=options.get("log_prob_chunk_size"),
        adamw="single",
    )


def measured(
    strategy: str,
    config: dict[str, Any],
    name: str,
    make: Callable[[PreTrainedModel, TrainOptions], Any],
    ranks: int = 1,
    pass_size: tuple[int, int] | None = None,
) -> tuple[int, Training, Any]:
    """Take some steps, and return the most bytes of one with all that lies beside it, and the plan of it.

    Threads of Gloo may let go of a copy when the next thing has begun: the lesser of two steps counts.

    Args:
        strategy: Its name.
        config: Its options, for the plan.
        name: Of the case.
        make: Makes the strategy.
        ranks: How many take part.
        pass_size: Rows and tokens of a pass, if not those of the case.
    """
    made: list[Any] = []
    _, resting = allocated(lambda: made.extend(begun(name, make, pass_size)))
    trainer, batch = made
    working = min(allocated(lambda: trainer.train_step(batch, SupervisedLoss()))[0] for _ in range(2))
    return resting + working, plan_of(strategy, config, name, ranks, pass_size), trainer
