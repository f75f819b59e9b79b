"""Splitting a batch into micro-batches under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

PAIR = "pair"
"""Column of a batch, ``[batch]`` int64: rows with the same number are computed in one pass, for losses over pairs."""


@dataclass(frozen=True, slots=True)
class Units:
    """What a pass computes as a whole, or not at all: single rows, or pairs of rows.

    Attributes:
        rows: Of each unit its rows.
        lengths: Of each unit the tokens that it takes: those of its rows, padded to each other where they are padded.
    """

    rows: list[list[int]]
    lengths: list[int]

    @classmethod
    def of(cls, batch: TensorDict, lengths: Sequence[int], *, packed: bool) -> Units:
        """Return the units of a batch.

        Args:
            batch: With the column :data:`PAIR` where rows belong together.
            lengths: Tokens per row.
            packed: Whether rows are laid end to end.
        """
        if PAIR not in batch.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            return cls([[row] for row in range(len(lengths))], list(lengths))
        found: dict[int, list[int]] = {}
        for row, pair in enumerate(batch[PAIR].tolist()):
            found.setdefault(pair, []).append(row)
        rows = list(found.values())
        own = [[lengths[row] for row in unit] for unit in rows]
        return cls(rows, [sum(unit) if packed else len(unit) * max(unit) for unit in own])

    def rows_of(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the rows of groups of units."""
        return [[row for unit in group for row in self.rows[unit]] for group in groups]


def split_by_tokens(lengths: Sequence[int], max_tokens: int | None, max_samples: int | None = None) -> list[list[int]]:
    """Group sample indices so that every group, padded to its longest member, stays within ``max_tokens``.

    Samples are taken longest first, so that neighbours have similar lengths and little is padding. The order is a
    pure function of ``lengths``.

    Args:
        lengths: Tokens per sample.
        max_tokens: Hard cap on ``len(group) * max(length in group)``; ``None`` for no cap.
        max_samples: Hard cap on samples per group; ``None`` for no cap.

    Returns:
        Lists of indices that together hold every index once.

    Raises:
        ValueError: If one sample alone is longer than ``max_tokens``.
    """
    groups: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = max(int(lengths[index]), 1)
        if max_tokens is not None and length > max_tokens:
            raise ValueError(
                f"Sample {index} has {length} tokens, more than max_tokens_per_microbatch={max_tokens}. "
                "Raise that option or lower sequence_length."
            )
        full = not groups or (max_tokens is not None and (len(groups[-1]) + 1) * width > max_tokens)
        full = full or (max_samples is not None and len(groups[-1]) >= max_samples)
        if full:
            groups.append([])
            width = length
        groups[-1].append(index)
    return groups


def iterate_micro_batches(
    batch: TensorDict, device: torch.device, *, max_tokens: int | None, max_samples: int | None = None
) -> Iterator[tuple[Tensor, TensorDict]]:
    """Yield (row indices, micro-batch on ``device``), each cut to its longest sequence.

    Args:
        batch: ``lengths`` ``[batch]``, and tensors ``[batch, sequence, ...]`` or ``[batch, ...]``, padded on the right.
        device: Where micro-batches go.
        max_tokens: See :func:`split_by_tokens`.
        max_samples: See :func:`split_by_tokens`.
    """
    lengths = batch["lengths"].tolist()
    width = batch["input_ids"].shape[1]
    for group in split_by_tokens(lengths, max_tokens, max_samples):
        indices = torch.tensor(group)
        longest = max(lengths[i] for i in group)
        cut = {
            name: value[indices, :longest] if value.ndim > 1 and value.shape[1] == width else value[indices]
            for name, value in batch.items()
        }
        yield indices, TensorDict(cut, batch_size=[len(group)]).to(device)
