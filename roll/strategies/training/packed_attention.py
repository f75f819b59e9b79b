"""Attention of packed sequences: its cost is that of the sequences, not of all packed tokens with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "roll_packed_attention"
REPLACED = ("sdpa", "eager")
"""Attention implementations that pay for every pair of packed tokens, and are replaced by :data:`ATTENTION`."""


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How a model wants its attention.

    Attributes:
        scaling: Factor of the scores; ``None`` for one over the root of the size of a head.
        dropout: Share of attention weights dropped.
        sliding_window: Tokens that a token sees, itself included; ``None`` for all that are not later.
    """

    scaling: float | None
    dropout: float
    sliding_window: int | None


class Plan(Protocol):
    """How the attention of a packed row is computed."""

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return ``[1, tokens, heads, size]`` of states as :func:`packed_attention` is given them."""
        ...


@dataclass(frozen=True, eq=False)
class PackingPlan:
    """How the attention of packed sequences is computed: by groups of sequences of similar length.

    Attributes:
        groups: For each group, ``[sequences, longest]``: the place of each of its tokens in the packed row. A sequence
            that is shorter repeats its last token, which none of its own tokens sees.
        places: ``[tokens]``: where the output of each packed token is in the outputs of all groups, laid end to end.
        last: What the last layer computes in place of this; ``None`` for the same.
    """

    groups: list[Tensor]
    places: Tensor
    last: Plan | None = None

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

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Attend within each sequence; see :class:`Plan`."""
        outputs = []
        for group in self.groups:
            rows, keys, values = (take(states, group) for states in (query, key, value))
            window = window_mask(group.shape[1], options.sliding_window, query.device)
            output, _ = sdpa_attention_forward(
                module, rows, keys, values, window, dropout=options.dropout, scaling=options.scaling
            )
            outputs.append(output.flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.places).unsqueeze(0)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing_plan: Plan | None = None,
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
    return packing_plan.attend(module, query, key, value, AttentionOptions(scaling, dropout, sliding_window)), None


def take(states: Tensor, group: Tensor) -> Tensor:
    """Cut a group's rows out of ``[1, heads, tokens, size]``: ``[sequences, heads, longest, size]``."""
    heads = states.shape[1]
    taken = states[0].index_select(1, group.flatten())
    return taken.view(heads, *group.shape, -1).transpose(0, 1)


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ``rows`` of places as ``[rows, longest]``, each filled up with its last place, and which are its own."""
    longest = max(len(row) for row in rows)
    filled = torch.stack([torch.cat((row, row[-1:].expand(longest - len(row)))) for row in rows])
    lengths = torch.tensor([len(row) for row in rows], device=filled.device)
    return filled, torch.arange(longest, device=filled.device) < lengths.unsqueeze(1)


def window_mask(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """Return which keys each query sees, ``[1, 1, length, length]``; ``None`` for all that are not later."""
    if sliding_window is None or sliding_window >= length:
        return None
    positions = torch.arange(length, device=device)
    distance = positions.unsqueeze(1) - positions
    return ((distance >= 0) & (distance < sliding_window))[None, None]
