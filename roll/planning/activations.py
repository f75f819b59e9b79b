"""What a pass of a trainer holds beside its weights: activations, logits, and gradients of them for a while.

The counts are of the tensors that autograd keeps for the layers of ``transformers`` and Megatron-Core: norm,
projections, rotary embedding, fused attention, gated feed-forward layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roll.planning.training_states import BF16, FP32, Training, states

MAX_LOGITS: Final = 2**28
"""Logits that are held at once where no chunk is asked for."""


@dataclass(frozen=True, slots=True)
class PassBytes:
    """Bytes of one pass on a rank.

    Attributes:
        activations: What the backward pass needs of the layers.
        logits: Logits and their log-probs, forward and backward.
        gradients: What the backward pass holds of a layer for a while.
    """

    activations: int
    logits: int
    gradients: int

    @property
    def peak(self) -> int:
        """The most that is held at a time: at the head, or at the first layer that is computed backward."""
        return self.activations + max(self.logits, self.gradients)


def pass_bytes(training: Training) -> PassBytes:
    """Return what one pass of a role holds."""
    tokens = -(-training.tokens // training.division.context)
    if not training.trained:
        return PassBytes(0, _logits(training, tokens, backward=False), int(tokens * _forward(training)))
    layers = -(-training.shape.layers // training.division.pipeline)
    # A stage of a pipeline has as many passes under way as there are stages behind it; the first has all.
    under_way = min(training.division.pipeline, training.passes)
    layer = _layer(training)
    stream = _stream_width(training) * training.shape.hidden / _between(training)
    if training.recomputes:
        held = under_way * layers * stream * tokens
        return PassBytes(int(held), _logits(training, tokens), int(tokens * (layer + _backward(training))))
    held = under_way * layers * (layer + (stream if training.recomputed else 0)) * tokens
    again = _feed_forward(training, BF16 if training.half else FP32) if training.recomputed & {"moe", "mlp"} else 0.0
    return PassBytes(int(held), _logits(training, tokens), int(tokens * (again + _backward(training))))


def working_bytes(training: Training) -> int:
    """Return what a role holds beside its states: in a pass, or while weights change, when nothing is gathered."""
    kept = states(training)
    return max(pass_bytes(training).peak, kept.update - kept.buffers)


def step_bytes(training: Training) -> int:
    """Return the most that a role holds at a time."""
    kept = states(training)
    return kept.resting + kept.buffers + working_bytes(training)


def _half_by_autocast(training: Training) -> bool:
    """Whether weights stay in fp32 and every operation chooses its format."""
    return training.half and training.about.autocasts and training.division.ranks == 1


def _stream_width(training: Training) -> int:
    return FP32 if not training.half or _half_by_autocast(training) else BF16


def _between(training: Training) -> int:
    """Among how many ranks the activations between matrices are shared."""
    return training.division.tensor if training.division.sequence_parallel else 1


def _layer(training: Training) -> float:
    """Return the bytes that autograd keeps of one layer for one token."""
    shape, division = training.shape, training.division
    width = BF16 if training.half else FP32
    if training.about.has_own_layers:
        norm = 2.0 * width * shape.hidden
    elif not training.half:
        norm = 3.0 * FP32 * shape.hidden
    elif _half_by_autocast(training):
        # In fp32, with a copy in bf16 for each matrix behind it.
        norm = (2.0 * FP32 + 2.5 * BF16) * shape.hidden
    else:
        norm = (FP32 + 2.0 * BF16) * shape.hidden
    heads = width * (2 * shape.queries + 2 * shape.keys) + FP32 * shape.heads
    if training.packed and not training.about.has_own_layers:
        heads += width * shape.queries
    if shape.normed_heads:
        extra = 1 if training.about.has_own_layers else 2
        heads += extra * width * (shape.queries + shape.keys)
    if training.attention == "matrix":
        heads += 2 * width * shape.heads * training.row_tokens
    kept = 0.0 if "layernorm" in training.recomputed else 2 * norm / _between(training)
    if not training.recomputed & {"moe", "mlp"}:
        kept += _feed_forward(training, width)
    return kept + heads / division.tensor


def _feed_forward(training: Training, width: int) -> float:
    shape, division = training.shape, training.division
    dense = 4.0 * width * shape.intermediate / division.tensor
    if not shape.sparse_layers:
        return dense
    # Each chosen expert is given a copy of the token, and its answer is weighed before they are added up.
    chosen = shape.chosen * width * (2 * shape.hidden + 4 * shape.expert_intermediate / division.expert_tensor)
    sparse = chosen + 4.0 * width * shape.shared_intermediate / division.tensor + FP32 * 2 * shape.experts
    return (shape.sparse_layers * sparse + (shape.layers - shape.sparse_layers) * dense) / shape.layers


def _forward(training: Training) -> float:
    """Return the bytes of one token in a layer from which nothing is kept."""
    shape = training.shape
    width = BF16 if training.half else FP32
    wide = 3 * shape.intermediate if shape.sparse_layers < shape.layers else 0
    chosen = shape.chosen * (shape.hidden + 3 * shape.expert_intermediate)
    return width * (3 * shape.hidden + max(wide, chosen, 2 * shape.queries + 2 * shape.keys) / training.division.tensor)


def _backward(training: Training) -> float:
    """Return the bytes of gradients of activations that are there at the same time, for one token."""
    shape = training.shape
    width = BF16 if training.half else FP32
    widest = max(shape.intermediate if shape.sparse_layers < shape.layers else 0, shape.chosen * shape.hidden)
    return width * (2 * shape.hidden + widest / training.division.tensor)


def _logits(training: Training, tokens: int, *, backward: bool = True) -> int:
    """Return the bytes at the head: states, logits in chunks, and log-probs, all in at least fp32."""
    shape, division = training.shape, training.division
    states = 3 * _stream_width(training) * shape.hidden * tokens
    if not training.scores_vocabulary:
        return states
    own = shape.vocabulary // division.tensor
    chunk = training.chunk or max(1, MAX_LOGITS // own)
    held = min(tokens, chunk)
    # Logits, log-probs, and in the backward pass the gradient of either.
    copies = (3 if backward else 2) * FP32 + (BF16 if training.half else 0)
    return int(states + held * own * copies) + (_head_gradient(training, tokens > chunk) if backward else 0)


def _head_gradient(training: Training, chunked: bool) -> int:
    """Return the bytes of gradients of the head that are added to those of an earlier pass, or of the embedding."""
    if training.lora_rank is not None:
        return 0
    whole = training.shape.embedding // training.division.tensor
    return FP32 * whole * ((chunked or training.passes > 1) + training.shape.tied)
