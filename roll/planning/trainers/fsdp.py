"""What FSDP keeps on a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roll.planning.training_states import (
    BF16,
    FP32,
    MOMENTS,
    States,
    Training,
    adamw_bytes,
    divided,
    numbers_of,
    whole_model,
)


def states(training: Training) -> States:
    """Return what the fullest rank keeps: its shares of everything, and layers that are gathered for a while."""
    whole, trained = numbers_of(training)
    ranks = training.division.ranks
    if ranks == 1:
        return whole_model(training)
    options = training.options or {}
    asked = int(options.get("fsdp_size") or -1)
    shard = asked if asked > 0 else ranks
    width, shape = BF16 if training.half else FP32, training.shape
    # The root keeps embedding and head gathered for the whole pass; of the layers, one computes and the next arrives.
    ends = shape.embedding + (shape.head if training.scores_vocabulary else 0)
    gathered = width * (ends + 2 * shape.largest_layer)
    # Gradients of a layer are whole until they are summed over ranks, in fp32.
    reduced = 0 if not trained else (width + FP32) * max(shape.largest_layer, ends) * trained // whole
    own = States(
        FP32 * whole // shard,
        FP32 * trained // shard,
        MOMENTS * trained // shard,
        gathered + reduced,
        update=adamw_bytes(training, trained // shard, shape.embedding // shard),
    )
    if options.get("offload_params"):
        return States(0, 0, 0, own.buffers, own.weights + own.gradients + own.optimizer)
    return own


def smaller(path: str, training: Training) -> Iterator[tuple[str, Training]]:
    """Yield options by which it keeps less, with how it computes then."""
    yield f"{path}.offload_params=true", replace(training, options={**(training.options or {}), "offload_params": True})
    yield from divided(path, training, "ulysses_size")
