"""What a trainer keeps between two passes: weights, gradients, optimiser states, on its fullest rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.planning.division import Division
from roll.planning.shapes import ModelShape

FP32, BF16 = 4, 2
MOMENTS: Final = 2 * FP32
"""Of AdamW, per number."""
_FLAT_BUCKET: Final = 5 * 10**8
"""Numbers that DeepSpeed gathers at once where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a role computes.

    Attributes:
        strategy: Its strategy.
        options: The options of that.
        shape: Its model.
        division: How it is spread.
        half: Whether it computes in bf16.
        trained: Whether it is trained, or scores only.
        lora_rank: Of adapters; ``None`` trains everything.
        recomputes: Whether activations are computed again in the backward pass.
        recomputed: Parts of a layer that are computed again where layers are not: ``moe``, ``layernorm``.
        packed: Whether rows are laid end to end.
        tokens: Tokens of a pass on a rank, padding included, before they are spread over context ranks.
        row_tokens: Tokens of its longest row.
        chunk: Tokens whose logits are held at once.
        passes: Passes of an optimiser step.
        scores_vocabulary: Whether it has logits; a critic has one number for a token.
        attention: ``fused``, or ``matrix`` where all scores of a row are held.
    """

    strategy: str
    shape: ModelShape
    division: Division
    options: Mapping[str, Any] | None = None
    half: bool = True
    trained: bool = True
    lora_rank: int | None = None
    recomputes: bool = True
    recomputed: frozenset[str] = frozenset()
    packed: bool = False
    tokens: int = 1024
    row_tokens: int = 1024
    chunk: int | None = None
    passes: int = 2
    scores_vocabulary: bool = True
    attention: str = "fused"

    @property
    def offloads(self) -> tuple[bool, bool]:
        """Whether weights, and optimiser states, stay in main memory."""
        given = dict(self.options or {})
        if self.strategy.startswith("fsdp"):
            return bool(given.get("offload_params")), bool(given.get("offload_params"))
        zero = given.get("zero_optimization") or {}
        away = [(zero.get(key) or {}).get("device") == "cpu" for key in ("offload_param", "offload_optimizer")]
        return away[0], away[1]


@dataclass(frozen=True, slots=True)
class States:
    """Bytes on a device.

    Attributes:
        weights: Those it computes with.
        gradients: Sums of gradients.
        optimizer: Moments, and fp32 weights beside the others.
        buffers: What is gathered or sent at once.
        host: In main memory instead.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """All that is on the device."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def states(training: Training) -> States:
    """Return what the fullest rank of a role keeps."""
    family = training.strategy.partition("_")[0]
    return _FAMILIES.get(family, _plain)(training)


def _numbers(training: Training) -> tuple[int, int]:
    """Return the numbers of the whole model, and how many of them are trained."""
    whole = training.shape.numbers
    if not training.scores_vocabulary:
        whole -= training.shape.head
    if not training.trained:
        return whole, 0
    if training.lora_rank is None:
        return whole, whole
    adapters = training.shape.adapters(training.lora_rank)
    return whole + adapters, adapters


def _plain(training: Training) -> States:
    """One process with the whole model."""
    whole, trained = _numbers(training)
    return States(FP32 * whole, FP32 * trained, MOMENTS * trained)


def _fsdp(training: Training) -> States:
    whole, trained = _numbers(training)
    ranks = training.division.ranks
    if ranks == 1:
        return _plain(training)
    asked = int((training.options or {}).get("fsdp_size") or -1)
    shard = asked if asked > 0 else ranks
    width, shape = BF16 if training.half else FP32, training.shape
    # The root keeps embedding and head gathered for the whole pass; of the layers, one computes and the next arrives.
    ends = shape.embedding + (shape.head if training.scores_vocabulary else 0)
    gathered = width * (ends + 2 * shape.largest_layer)
    # Gradients of a layer are whole until they are summed over ranks, in fp32.
    reduced = 0 if not trained else (width + FP32) * max(shape.largest_layer, ends) * trained // whole
    own = States(FP32 * whole // shard, FP32 * trained // shard, MOMENTS * trained // shard, gathered + reduced)
    if training.offloads[0]:
        return States(0, 0, 0, own.buffers, own.weights + own.gradients + own.optimizer)
    return own


def _deepspeed(training: Training) -> States:
    whole, trained = _numbers(training)
    zero = dict((training.options or {}).get("zero_optimization") or {})
    stage, ranks, shape = int(zero.get("stage") or 0), training.division.ranks, training.shape
    width = BF16 if training.half else FP32
    if training.half:
        stage = max(stage, 1)
    weights_away, states_away = training.offloads
    bucket = min(_given(zero, "reduce_bucket_size", shape.hidden**2), trained)
    if stage == 0:
        return States(FP32 * whole, FP32 * trained, MOMENTS * trained, FP32 * bucket)
    weights = width * whole // (ranks if stage == 3 else 1)
    # Stages 1 to 3 update fp32 copies of their shares.
    optimizer = (MOMENTS + FP32) * trained // ranks
    gradients = FP32 * trained // (ranks if stage >= 2 else 1)
    # Gradients are copied together before they are sent; at stage 3 layers are gathered too.
    buffers = 2 * width * bucket
    if stage == 3:
        live = min(_given(zero, "stage3_max_live_parameters", 10**9), shape.all_layers)
        prefetched = min(_given(zero, "stage3_prefetch_bucket_size", int(0.9 * shape.hidden**2)), live)
        buffers += width * (shape.largest_layer + prefetched + shape.embedding)
    else:
        buffers += width * min(_given(zero, "allgather_bucket_size", _FLAT_BUCKET), trained)
    host = 0
    if states_away:
        host, optimizer = optimizer + gradients, 0
        gradients = 0 if stage >= 2 else gradients
    if weights_away:
        host, weights = host + weights, 0
    return States(weights, gradients, optimizer, buffers, host)


def _given(zero: Mapping[str, Any], key: str, default: int) -> int:
    value = zero.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else default


def _megatron(training: Training) -> States:
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
    # In fp32 the optimiser's weights are those of the model.
    kept = MOMENTS + (FP32 if training.half else 0)
    return States(
        width * (shared + experts),
        summed * (shared + experts),
        kept * shared // copies + kept * experts // rivals,
    )


_FAMILIES: Final[Mapping[str, Callable[[Training], States]]] = {
    "fsdp": _fsdp,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
}
