"""Sequences that begin alike, as a tree: what they share is there once.

Members of a group share their prompt, and samples of one episode its history. In a causal model the states of a token
depend on the tokens before it alone, so equal beginnings have equal states, and are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PrefixOrder:
    """Sequences in an order that puts the most alike side by side.

    Attributes:
        rows: Their numbers; a sequence comes before those that are its beginning.
        shared: How many tokens each of them, in that order, has in common with the one before it; 0 for the first.
    """

    rows: list[int]
    shared: list[int]

    @classmethod
    def of(cls, input_ids: Tensor, lengths: Tensor) -> PrefixOrder:
        """Order the rows of ``input_ids`` ``[batch, sequence]``, right-padded, with ``lengths`` ``[batch]``."""
        ids, sizes = input_ids.cpu().numpy(), lengths.cpu().numpy()
        last = b"\xff\xff\xff\xff"
        # As big-endian bytes numbers compare like themselves.
        keys = [row[:size].astype(">u4").tobytes() + last for row, size in zip(ids, sizes, strict=True)]
        rows = sorted(range(len(keys)), key=lambda row: (keys[row], row))
        ahead, behind = rows[:-1], rows[1:]
        both = np.minimum(sizes[ahead], sizes[behind])[:, None]
        differs = (ids[ahead] != ids[behind]) | (np.arange(ids.shape[1]) >= both)
        differs = np.concatenate((differs, np.ones((len(differs), 1), bool)), axis=1)
        return cls(rows, [0, *differs.argmax(1).tolist()][: len(rows)])


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """The tokens of a micro-batch, equal beginnings once, laid end to end.

    A *branch* is what a sequence has beyond the one before it in :class:`PrefixOrder`. Branches are laid out in that
    order, so that everything that goes on from a token stands behind it without a gap.

    Attributes:
        places: ``[batch, sequence]``: where each token of each row is; 0 on padding.
        ids: ``[tokens]``.
        positions: ``[tokens]``: how many tokens are before each in its sequences.
        lengths: ``[branches]``: tokens of each branch; together they are all tokens.
        paths: Of each branch, where the tokens before it are, ``[tokens]`` each; empty for one that begins a sequence.
    """

    places: Tensor
    ids: Tensor
    positions: Tensor
    lengths: Tensor
    paths: list[Tensor]

    @classmethod
    def of(cls, input_ids: Tensor, lengths: Tensor) -> PrefixTree:
        """Return the tree of ``input_ids`` ``[batch, sequence]``, right-padded, with ``lengths`` ``[batch]``."""
        order, sizes = PrefixOrder.of(input_ids, lengths), lengths.tolist()
        places = torch.zeros(input_ids.shape, dtype=torch.int64)
        own, paths = [], []
        total, before = 0, 0
        for row, shared in zip(order.rows, order.shared, strict=True):
            new = sizes[row] - shared
            places[row, :shared] = places[before, :shared]
            places[row, shared : sizes[row]] = torch.arange(total, total + new)
            if new:
                own.append(new)
                paths.append(places[row, :shared].to(input_ids.device))
            total, before = total + new, row
        places = places.to(input_ids.device)
        columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand(input_ids.shape)
        inside = columns < lengths.unsqueeze(1)
        ids, positions = input_ids.new_empty(total), input_ids.new_empty(total)
        # Rows that share a token write the same.
        ids[places[inside]] = input_ids[inside]
        positions[places[inside]] = columns[inside]
        return cls(places, ids, positions, torch.tensor(own, device=input_ids.device), paths)

    def ends(self, lengths: Tensor) -> Tensor:
        """Return behind which place the last token is that goes on from each token, ``[tokens]``.

        Args:
            lengths: ``[batch]``, those of the rows.
        """
        inside = torch.arange(self.places.shape[1], device=lengths.device) < lengths.unsqueeze(1)
        last = self.places.amax(1, keepdim=True).expand(self.places.shape) + 1
        ends = torch.zeros(len(self.ids), dtype=torch.int64, device=lengths.device)
        return ends.scatter_reduce(0, self.places[inside], last[inside], "amax")


def pack_by_prefixes(
    order: PrefixOrder,
    units: Sequence[Sequence[int]],
    lengths: Sequence[int],
    max_tokens: int | None,
    max_samples: int | None = None,
) -> list[list[int]]:
    """Group units so that those that begin alike are together, and the tokens of no group are more than ``max_tokens``.

    Args:
        order: Of the rows.
        units: Rows that are computed together, each the numbers of some.
        lengths: Tokens of each unit without anything shared.
        max_tokens: Hard cap on the tokens of a group, those that are shared counted once; ``None`` for no cap.
        max_samples: Hard cap on units per group; ``None`` for no cap.

    Returns:
        Of each group the numbers of its units.

    Raises:
        ValueError: One unit alone has more tokens than ``max_tokens``.
    """
    rank = {row: place for place, row in enumerate(order.rows)}
    groups: list[list[int]] = []
    tokens, before = 0, -2
    for index in sorted(range(len(units)), key=lambda i: min(rank[row] for row in units[i])):
        if max_tokens is not None and lengths[index] > max_tokens:
            raise ValueError(
                f"Sample {units[index][0]} has {lengths[index]} tokens, more than "
                f"max_tokens_per_microbatch={max_tokens}. Raise that option or lower sequence_length."
            )
        first = min(rank[row] for row in units[index])
        # Of units of several rows nothing is counted as shared, which errs on the safe side.
        alone = len(units[index]) > 1 or first != before + 1
        new = lengths[index] - (0 if alone else order.shared[first])
        full = max_tokens is not None and tokens + new > max_tokens
        if not groups or full or (max_samples is not None and len(groups[-1]) >= max_samples):
            groups.append([])
            tokens, new = 0, lengths[index]
        groups[-1].append(index)
        tokens, before = tokens + new, first
    return groups
