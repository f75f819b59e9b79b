"""From a loss per token to the scalar that is differentiated.

The denominators are **global**: counts over all micro-batches and ranks of one optimiser step. Then the sum of the
micro-batches' gradients (summed, not averaged, over ranks) does not depend on how the step was split.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from roll.algorithms.masking import blank, marked_rows, tokens_per_row

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES: tuple[str, ...] = get_args(Aggregation)


def count_tokens(mask: Tensor) -> int:
    """Return the number of trained tokens of ``mask`` ``[batch, sequence]``."""
    return int(torch.count_nonzero(mask))


def count_sequences(mask: Tensor) -> int:
    """Return the number of rows of ``mask`` ``[batch, sequence]`` that have a trained token."""
    return int(marked_rows(mask).sum())


def aggregate(
    loss: Tensor,
    mask: Tensor,
    mode: str,
    *,
    total_tokens: int | float | Tensor | None = None,
    total_sequences: int | float | Tensor | None = None,
    max_length: int | float | None = None,
) -> Tensor:
    """Reduce a loss per token to a scalar.

    * ``token-mean``: ``sum(m * l) / total_tokens``
    * ``seq-mean-token-sum``: mean over the sequences that have a token of ``sum_t(m * l)``
    * ``seq-mean-token-mean``: mean over them of ``sum_t(m * l) / sum_t(m)``
    * ``seq-mean-token-sum-norm``: mean over them of ``sum_t(m * l) / max_length``

    Args:
        loss: ``[batch, sequence]`` float.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        mode: One of the names above.
        total_tokens: Trained tokens over all micro-batches and ranks; counted from ``mask`` without it.
        total_sequences: Sequences with a token over all micro-batches and ranks; counted from ``mask`` without it.
        max_length: Divisor of ``seq-mean-token-sum-norm``. Never taken from the padded width, which is an accident.

    Returns:
        A scalar; 0 for a batch without trained tokens.

    Raises:
        ValueError: ``mode`` is unknown, or ``max_length`` is missing for ``seq-mean-token-sum-norm``.

    Source: Yu et al. 2025, DAPO (``token-mean``); Shao et al. 2024, DeepSeekMath (``seq-mean-token-mean``); Liu et al.
    2025, Understanding R1-Zero-Like Training (``seq-mean-token-sum-norm``).
    """
    if mode not in MODES:
        raise ValueError(f"loss_agg_mode: unknown {mode!r}; known: {', '.join(MODES)}.")
    kept = blank(loss, mask)
    if mode == "token-mean":
        return kept.sum() / _at_least_one(count_tokens(mask) if total_tokens is None else total_tokens)
    sums = kept.sum(1)
    if mode == "seq-mean-token-mean":
        sums = sums / tokens_per_row(mask).clamp_min(1)
    elif mode == "seq-mean-token-sum-norm":
        if max_length is None or max_length <= 0:
            raise ValueError("seq-mean-token-sum-norm needs max_length > 0 (the response length of the run).")
        sums = sums / max_length
    return sums.sum() / _at_least_one(count_sequences(mask) if total_sequences is None else total_sequences)


def _at_least_one(total: int | float | Tensor) -> int | float | Tensor:
    """Keep an empty batch from dividing by zero."""
    return total.clamp_min(1) if isinstance(total, Tensor) else max(total, 1)
