"""Splitting a batch into micro-batches under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor


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
