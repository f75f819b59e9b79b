"""Rows as Megatron-Core takes them: padded or packed, and this rank's part of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor

from roll.strategies.training.megatron.core import PackedSeqParams


@dataclass(frozen=True, slots=True)
class Division:
    """How the tokens of a sequence are divided among ranks.

    Each of ``context_size`` ranks takes two of ``2 * context_size`` equal parts of a sequence, one from its begin and
    one from its end, so that causal attention is the same work for all.

    Attributes:
        context_size: Ranks that share each sequence.
        context_rank: Which of them this is.
        multiple: Sequences are padded to a multiple of it.
    """

    context_size: int = 1
    context_rank: int = 0
    multiple: int = 1

    @classmethod
    def of(cls, context_size: int, context_rank: int, tensor_size: int, sequence_parallel: bool) -> Division:
        """Return the division for these sizes."""
        parts = 2 * context_size if context_size > 1 else 1
        return cls(context_size, context_rank, parts * (tensor_size if sequence_parallel else 1))

    def padded(self, length: int) -> int:
        """Return the length of a sequence with its padding."""
        return -(-max(length, 1) // self.multiple) * self.multiple

    def own(self, tokens: Tensor) -> Tensor:
        """Return this rank's part of sequences ``[batch, sequence]``: ``[batch, sequence / context_size]``."""
        if self.context_size == 1:
            return tokens
        parts = tokens.chunk(2 * self.context_size, dim=1)
        return torch.cat([parts[self.context_rank], parts[2 * self.context_size - 1 - self.context_rank]], dim=1)


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What the model is given for a micro-batch, and where its outputs belong.

    Attributes:
        input_ids: ``[rows, sequence]`` of this rank's tokens; packed ``[1, tokens]``.
        position_ids: The same, places in the sequences.
        packing: Where packed sequences begin and end; ``None`` for padded rows.
        sources: ``[n]``: tokens of this rank, counted row by row, that come before a token of the mask.
        cells: ``[n]``: where those tokens are in the micro-batch, as ``row * width + column``.
        targets: ``[n]``: those tokens.
    """

    input_ids: Tensor
    position_ids: Tensor
    packing: Any
    sources: Tensor
    cells: Tensor
    targets: Tensor


def model_inputs(
    micro: TensorDict, division: Division, *, packed: bool, shape: tuple[int, int] | None = None
) -> ModelInputs:
    """Lay out a micro-batch.

    Args:
        micro: ``input_ids`` and ``response_mask`` ``[batch, sequence]``, ``lengths`` ``[batch]``, padded on the right.
        division: What this rank takes of each sequence.
        packed: Lay sequences end to end, each padded to the multiple of ``division`` only.
        shape: Rows and width to pad to, all ranks' parts together; ``None`` for as little as possible. Packed, that is
            one row.
    """
    ids, width = micro["input_ids"], micro["input_ids"].shape[1]
    mask = micro["response_mask"].bool().clone()
    # Nothing comes before the first token.
    mask[:, 0] = False
    here = torch.arange(width, device=ids.device).expand_as(ids)
    cells = torch.arange(ids.numel(), device=ids.device).view_as(ids)
    # Of each token: its id, its place in the sequence, and the cell of the token that follows, -1 where none is asked.
    following = F.pad(torch.where(mask, cells, -1)[:, 1:], (0, 1), value=-1)
    columns = torch.stack([ids, here, following])
    packing = None
    if packed:
        own, packing = _packed(columns, micro["lengths"].tolist(), division, None if shape is None else shape[1])
    else:
        rows, longest = shape or (len(ids), division.padded(width))
        filled = _pad(columns, rows, longest)
        own = torch.stack([division.own(column) for column in filled])
    after = own[2].flatten()
    sources = (after >= 0).nonzero().squeeze(1)
    chosen = after[sources]
    return ModelInputs(own[0], own[1], packing, sources, chosen, ids.flatten()[chosen])


def _packed(columns: Tensor, lengths: Sequence[int], division: Division, tokens: int | None) -> tuple[Tensor, Any]:
    """Return ``[3, 1, tokens of this rank]`` and where the sequences are; one of padding fills up to ``tokens``."""
    sizes = [division.padded(length) for length in lengths]
    rows = [columns[:, row : row + 1, :length] for row, length in enumerate(lengths)]
    if tokens is not None and tokens > sum(sizes):
        sizes.append(tokens - sum(sizes))
        rows.append(columns[:, :1, :0])
    parts = [division.own(_pad(row, 1, size).squeeze(1)) for row, size in zip(rows, sizes, strict=True)]
    ends = torch.tensor([0, *sizes], device=columns.device).cumsum(0).to(torch.int32)
    # Padding is behind the tokens of a sequence, where causal attention cannot see it: to the kernels it is a part.
    packing = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        cu_seqlens_q_padded=ends,
        cu_seqlens_kv_padded=ends,
        max_seqlen_q=max(sizes),
        max_seqlen_kv=max(sizes),
    )
    return torch.cat(parts, dim=1).unsqueeze(1), packing


def _pad(columns: Tensor, rows: int, width: int) -> Tensor:
    """Pad ``[3, batch, sequence]`` with tokens that nothing is asked about."""
    behind, below = width - columns.shape[2], rows - columns.shape[1]
    if not behind and not below:
        return columns
    padded = columns.new_zeros(3, rows, width)
    padded[2] = -1
    padded[:, : columns.shape[1], : columns.shape[2]] = columns
    return padded
