"""What Megatron-Core keeps on a device."""

from __future__ import annotations

from collections.abc import Iterator

from roll.planning.training_states import BF16, FP32, MOMENTS, States, Training, adamw_bytes, divided


def states(training: Training) -> States:
    """Return what the fullest rank keeps: of every matrix a part, and of the optimiser's states a share."""
    division, given = training.division, dict(training.options or {})
    shared, experts = division.numbers(training.shape)
    width = BF16 if training.half else FP32
    if not training.trained:
        return States(width * (shared + experts))
    if training.lora_rank is not None:
        adapters = training.shape.adapters(training.lora_rank) // (division.tensor * division.pipeline)
        return States(width * (shared + experts) + FP32 * adapters, FP32 * adapters, MOMENTS * adapters)
    spread = bool(given.get("use_distributed_optimizer", True))
    # Data and context ranks have the same weights; of an expert there are fewer copies.
    copies = division.data * division.context if spread else 1
    rivals = max(1, division.ranks // (division.pipeline * division.expert * division.expert_tensor)) if spread else 1
    summed = FP32 if given.get("grad_reduce_in_fp32", True) or not training.half else BF16
    largest = training.shape.embedding // division.tensor
    # In fp32 the optimiser's weights are those of the model.
    kept = MOMENTS + (FP32 if training.half else 0)
    return States(
        width * (shared + experts),
        summed * (shared + experts),
        kept * shared // copies + kept * experts // rivals,
        # On GPUs it updates with a kernel of its own, which holds nothing on the way.
        update=adamw_bytes(training, shared // copies, largest) if training.adamw == "single" else 0,
    )


def smaller(path: str, training: Training) -> Iterator[tuple[str, Training]]:
    """Yield options by which it keeps less, with how it computes then."""
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        yield from divided(path, training, key)
