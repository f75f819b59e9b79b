"""What DeepSpeed keeps on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from roll.planning.training_states import BF16, FP32, MOMENTS, States, Training, adamw_bytes, numbers_of

_FLAT_BUCKET: Final = 5 * 10**8
"""Numbers that are gathered, or at stage 0 sent, at once where nothing is said."""


def states(training: Training) -> States:
    """Return what the fullest rank keeps, by the stage of ZeRO."""
    whole, trained = numbers_of(training)
    zero = dict((training.options or {}).get("zero_optimization") or {})
    stage, ranks, shape = int(zero.get("stage") or 0), training.division.ranks, training.shape
    width = BF16 if training.half else FP32
    if training.half:
        stage = max(stage, 1)
    weights_away, states_away = (
        (zero.get(key) or {}).get("device") == "cpu" for key in ("offload_param", "offload_optimizer")
    )
    bucket = min(_given(zero, "reduce_bucket_size", shape.hidden**2), trained)
    if stage == 0:
        # Gradients are sent as copies when all are there.
        update = max(FP32 * min(_FLAT_BUCKET, trained), adamw_bytes(training, trained))
        return States(FP32 * whole, FP32 * trained, MOMENTS * trained, update=update)
    weights = width * whole // (ranks if stage == 3 else 1)
    # Stages 1 to 3 update fp32 copies of their shares.
    optimizer = (MOMENTS + FP32) * trained // ranks
    gradients = FP32 * trained // (ranks if stage >= 2 else 1)
    # Gradients are copied together before they are sent; at stage 3 layers are gathered too.
    buffers = 2 * width * bucket
    # The gradients of a share are laid end to end, as its weights are: to AdamW they are one tensor.
    update = FP32 * trained // ranks + adamw_bytes(training, trained // ranks, trained // ranks)
    if stage == 3:
        live = min(_given(zero, "stage3_max_live_parameters", 10**9), shape.all_layers)
        prefetched = min(_given(zero, "stage3_prefetch_bucket_size", int(0.9 * shape.hidden**2)), live)
        buffers += width * (shape.largest_layer + prefetched + shape.embedding)
    else:
        update = max(update, width * min(_given(zero, "allgather_bucket_size", _FLAT_BUCKET), trained))
    host = 0
    if states_away:
        host, optimizer, update = optimizer + gradients, 0, 0
        gradients = 0 if stage >= 2 else gradients
    if weights_away:
        host, weights = host + weights, 0
    return States(weights, gradients, optimizer, buffers, host, update)


def smaller(path: str, training: Training) -> Iterator[tuple[str, Training]]:
    """Yield options by which it keeps less, with how it computes then."""
    options = training.options or {}
    zero = dict(options.get("zero_optimization") or {})
    for key, value in (("stage", 3), ("offload_optimizer", {"device": "cpu"})):
        if zero.get(key) != value:
            changed = {**options, "zero_optimization": {**zero, key: value}}
            yield f"{path}.zero_optimization.{key}={value}", replace(training, options=changed)


def _given(zero: Mapping[str, Any], key: str, default: int) -> int:
    value = zero.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else default
