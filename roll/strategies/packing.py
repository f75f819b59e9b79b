"""Hidden states of the tokens of a micro-batch: padded rows, or all rows laid end to end without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "roll_packed_attention"
REPLACED = ("sdpa", "eager")
"""Attention implementations that pay for every pair of packed tokens, and are replaced by :data:`ATTENTION`."""

_TOLERANCE = 1e-3
_TOLERANCE_HALF = 0.1


class FlatHidden(NamedTuple):
    """Hidden states of a micro-batch without its rows.

    Attributes:
        states: ``[tokens, hidden]``.
        starts: ``[batch]``: where each row begins in ``states``.
    """

    states: Tensor
    starts: Tensor

    def before(self, mask: Tensor) -> Tensor:
        """Return the states one token before each token of ``mask`` ``[batch, sequence]``, row by row: ``[n, hidden]``.

        No token of the first column may be in the mask: nothing is before it.
        """
        rows, columns = mask.nonzero(as_tuple=True)
        return self.states.index_select(0, self.starts[rows] + columns - 1)


@dataclass(frozen=True, eq=False)
class PackingPlan:
    """How the attention of packed sequences is computed: by groups of sequences of similar length.

    Attributes:
        groups: For each group, ``[sequences, longest]``: the place of each of its tokens in the packed row. A sequence
            that is shorter repeats its last token, which none of its own tokens sees.
        places: ``[tokens]``: where the output of each packed token is in the outputs of all groups, laid end to end.
    """

    groups: list[Tensor]
    places: Tensor

    @classmethod
    def of(cls, lengths: Tensor) -> PackingPlan:
        """Plan for sequences of ``lengths`` ``[batch]``. No sequence is padded to more than twice its length."""
        starts = lengths.cumsum(0) - lengths
        sizes = lengths.tolist()
        order = sorted((row for row in range(len(sizes)) if sizes[row]), key=lambda row: -sizes[row])
        members: list[list[int]] = []
        for row in order:
            if not members or 2 * sizes[row] < sizes[members[-1][0]]:
                members.append([])
            members[-1].append(row)
        groups = []
        places = torch.empty(sum(sizes), dtype=torch.int64, device=lengths.device)
        offset = 0
        for rows in members:
            longest = sizes[rows[0]]
            columns = torch.arange(longest, device=lengths.device).unsqueeze(0)
            index = torch.tensor(rows, device=lengths.device)
            ends = lengths[index].unsqueeze(1)
            group = starts[index].unsqueeze(1) + torch.minimum(columns, ends - 1)
            inside = columns < ends
            places[group[inside]] = offset + inside.flatten().nonzero().squeeze(1)
            groups.append(group)
            offset += group.numel()
        return cls(groups, places)


def flat_hidden(decoder: nn.Module, input_ids: Tensor, lengths: Tensor | None = None) -> FlatHidden:
    """Run the decoder over right-padded sequences.

    With right padding and causal attention no valid token can see a padding token, so no attention mask is built and
    the fused causal kernel is used. Packed, the valid tokens of all rows make up one row, with positions that start
    again at 0 for each sequence.

    Args:
        decoder: A Hugging Face decoder without its head (for packing, see :func:`prepare_packing`).
        input_ids: ``[batch, sequence]`` int64, padded on the right.
        lengths: ``[batch]``, valid tokens of each row; packs. ``None`` runs the padded rows.
    """
    rows, width = input_ids.shape
    if lengths is None:
        states = decoder(input_ids=input_ids, use_cache=False).last_hidden_state
        return FlatHidden(states.flatten(0, 1), torch.arange(rows, device=input_ids.device) * width)
    columns = torch.arange(width, device=input_ids.device).expand(rows, width)
    inside = columns < lengths.unsqueeze(1)
    given: dict[str, Any] = {"attention_mask": None}
    if decoder.config._attn_implementation == ATTENTION:  # type: ignore[union-attr]
        # transformers takes a mask of four dimensions for a finished one, and builds none of tokens x tokens itself.
        finished = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
        given = {"attention_mask": finished, "packing_plan": PackingPlan.of(lengths)}
    states = decoder(
        input_ids=input_ids[inside].unsqueeze(0), position_ids=columns[inside].unsqueeze(0), use_cache=False, **given
    ).last_hidden_state
    return FlatHidden(states.squeeze(0), lengths.cumsum(0) - lengths)


def prepare_packing(model: PreTrainedModel) -> None:
    """Give ``model`` an attention whose cost is that of its sequences, not of all packed tokens with each other.

    Without packing it computes what it did before. Attention kernels that keep packed sequences apart by themselves
    (FlashAttention) stay.
    """
    if model.config._attn_implementation in REPLACED:
        AttentionInterface.register(ATTENTION, packed_attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing_plan: PackingPlan | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form of transformers' ``AttentionInterface``, causal within each packed sequence.

    Args:
        module: The attention layer.
        query: ``[1, heads, tokens, size]``; of rows that are not packed ``[batch, heads, sequence, size]``.
        key: The same, of the key heads.
        value: The same, of the key heads.
        attention_mask: Only for rows that are not packed.
        dropout: Share of attention weights dropped.
        scaling: Factor of the scores.
        packing_plan: Where the sequences are; ``None`` for rows that are not packed.
        sliding_window: Tokens that a token sees, itself included.
        options: Whatever else the model hands on.

    Returns:
        ``[1, tokens, heads, size]``, and no attention weights.

    Raises:
        NotImplementedError: If the model asks for something this attention does not compute.
    """
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if options.get(name) is not None:
            raise NotImplementedError(f"packed attention has no {name!r}")
    if packing_plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling)
    outputs = []
    for group in packing_plan.groups:
        rows, keys, values = (_take(states, group) for states in (query, key, value))
        window = _window(group.shape[1], sliding_window, query.device)
        output, _ = sdpa_attention_forward(module, rows, keys, values, window, dropout=dropout, scaling=scaling)
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs).index_select(0, packing_plan.places).unsqueeze(0), None


def _take(states: Tensor, group: Tensor) -> Tensor:
    """Cut a group's rows out of ``[1, heads, tokens, size]``: ``[sequences, heads, longest, size]``."""
    heads = states.shape[1]
    taken = states[0].index_select(1, group.flatten())
    return taken.view(heads, *group.shape, -1).transpose(0, 1)


def _window(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """Return which keys each query sees, ``[1, 1, length, length]``; ``None`` for all that are not later."""
    if sliding_window is None or sliding_window >= length:
        return None
    positions = torch.arange(length, device=device)
    distance = positions.unsqueeze(1) - positions
    return ((distance >= 0) & (distance < sliding_window))[None, None]


def check_packing(model: PreTrainedModel, states: Callable[[PackingProbe, bool], Tensor], probe: PackingProbe) -> None:
    """Raise unless sequences that are packed are computed as if each were alone.

    Args:
        model: The model, for messages and its precision.
        states: From a micro-batch, and whether to pack it, to the hidden states of its tokens ``[n, hidden]``.
        probe: The micro-batch.

    Raises:
        ValueError: Packed sequences see each other, or the model cannot run them.
    """
    apart = states(probe, False)
    try:
        packed = states(probe, True)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = f"it cannot run packed sequences ({error})"
    else:
        difference = float((packed - apart).norm() / apart.norm())
        if difference <= probe.tolerance:
            return
        reason = f"packed sequences see each other (hidden states change by {difference:.2g}, relative)"
    raise ValueError(
        f"use_sequence_packing: {type(model).__name__} with attn_implementation={model.config._attn_implementation}: "
        f"{reason}. Switch use_sequence_packing off, or use another attn_implementation."
    )


@dataclass(frozen=True, eq=False)
class PackingProbe:
    """A small micro-batch of unequal rows.

    Attributes:
        input_ids: ``[batch, sequence]``.
        mask: ``[batch, sequence]``: every valid token but the first ones.
        lengths: ``[batch]``.
        tolerance: Largest relative difference that rounding explains; neighbours in view change the states by a half.
    """

    input_ids: Tensor
    mask: Tensor
    lengths: Tensor
    tolerance: float

    @classmethod
    def of(cls, model: PreTrainedModel, device: torch.device, *, mixed_precision: bool) -> PackingProbe:
        """Return the probe for a model that takes its inputs on ``device``."""
        lengths = torch.tensor([5, 11, 2, 7], device=device)
        columns = torch.arange(11, device=device)
        ids = (torch.arange(44, device=device).reshape(4, 11) * 7 + 3) % model.config.get_text_config().vocab_size
        half = mixed_precision or model.dtype in (torch.bfloat16, torch.float16)
        mask = (columns > 0) & (columns < lengths.unsqueeze(1))
        return cls(ids, mask, lengths, _TOLERANCE_HALF if half else _TOLERANCE)


def pack_by_tokens(lengths: Sequence[int], max_tokens: int | None, max_samples: int | None = None) -> list[list[int]]:
    """Group sample indices so that the tokens of every group sum to at most ``max_tokens``.

    First fit, longest first: at most 11/9 of the fewest possible groups (Johnson 1973). The order is a pure function of
    ``lengths``.

    Args:
        lengths: Tokens per sample.
        max_tokens: Hard cap on the sum of a group; ``None`` for no cap.
        max_samples: Hard cap on samples per group; ``None`` for no cap.

    Raises:
        ValueError: If one sample alone is longer than ``max_tokens``.
    """
    groups: list[list[int]] = []
    free: list[float] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = int(lengths[index])
        if max_tokens is not None and length > max_tokens:
            raise ValueError(
                f"Sample {index} has {length} tokens, more than max_tokens_per_microbatch={max_tokens}. "
                "Raise that option or lower sequence_length."
            )
        fits = (
            place
            for place, space in enumerate(free)
            if length <= space and (max_samples is None or len(groups[place]) < max_samples)
        )
        place = next(fits, len(groups))
        if place == len(groups):
            groups.append([])
            free.append(float("inf") if max_tokens is None else max_tokens)
        groups[place].append(index)
        free[place] -= length
    return groups
