"""What the policy losses share: clamped log-ratios, sequence means, metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.masking import as_bool, blank, slabs

LOG_RATIO_LIMIT = 20.0

Metrics = dict[str, Tensor]


def log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return ``log pi - log pi_old`` on the mask, 0 elsewhere, not clamped; ``[batch, sequence]``."""
    return blank(log_probs, mask) - blank(old_log_probs, mask)


def to_ratio(difference: Tensor) -> Tensor:
    """Return ``exp`` of a log-ratio of any shape clamped to +-20, so that it is always finite."""
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return advantages ``[batch]`` or ``[batch, sequence]`` as ``[batch, sequence]``, 0 outside the mask."""
    return blank(advantages.unsqueeze(-1).expand(mask.shape) if advantages.dim() == 1 else advantages, mask)


def segment_sum(values: Tensor, mask: Tensor, turn_ids: Tensor | None = None) -> Tensor:
    """Replace each token of the mask by the sum over its sequence, or over its turn with ``turn_ids``.

    Args:
        values: ``[batch, sequence]``, 0 outside the mask.
        mask: ``[batch, sequence]``.
        turn_ids: ``[batch, sequence]`` int; tokens of a row with the same number form a segment.

    Returns:
        ``[batch, sequence]``, 0 outside the mask; differentiable.
    """
    inside = as_bool(mask)
    if turn_ids is None or not bool(inside.any()):
        return blank(values.sum(1, keepdim=True).expand(values.shape), inside)
    lowest = turn_ids[inside].min()
    numbers = torch.where(inside, turn_ids - lowest, 0).long()
    sums = torch.zeros(values.shape[0], int(numbers.max()) + 1, dtype=values.dtype, device=values.device)
    return blank(sums.scatter_add(1, numbers, values).gather(1, numbers), inside)


def segment_mean(values: Tensor, mask: Tensor, turn_ids: Tensor | None = None) -> Tensor:
    """Replace each token of the mask by the mean over its sequence or turn, ``[batch, sequence]``.

    Arguments as in :func:`segment_sum`.
    """
    counts = segment_sum(as_bool(mask).to(values.dtype), mask, turn_ids)
    return segment_sum(values, mask, turn_ids) / counts.clamp_min(1)


class RatioSums:
    """The mean and largest ratio, the approximate KL (k3) of the update and the share of clipped tokens, by blocks.

    Source: Schulman 2020, Approximating KL Divergence (k3).
    """

    def __init__(self, mask: Tensor, clips: bool) -> None:
        """Begin with nothing of ``mask`` ``[batch, sequence]``; without ``clips`` nothing is said of them."""
        self._tokens = torch.count_nonzero(as_bool(mask))  # a sum would make a copy in integers
        zero = torch.zeros((), dtype=torch.float64, device=mask.device)
        self._grown, self._divergence, self._largest = zero, zero, zero
        self._clips = torch.zeros_like(self._tokens) if clips else None

    def add(self, limited: Tensor, inside: Tensor, clipped: Tensor | None) -> None:
        """Take in some ``[rows, sequence]``: log-ratios clamped to +-20, 0 outside the mask, and where clips count."""
        grown = torch.expm1(limited)
        # Row by row first: a sum of all in double precision would make a copy of all in double precision.
        self._grown = self._grown + grown.sum(1).double().sum()
        if grown.numel():
            self._largest = torch.maximum(self._largest, _largest_ratio(grown, inside))
        self._divergence = self._divergence + grown.sub_(limited).sum(1).double().sum()
        if self._clips is not None and clipped is not None:
            self._clips = self._clips + torch.count_nonzero(clipped)

    def metrics(self, dtype: torch.dtype) -> Metrics:
        """Return them as scalars of ``dtype``."""
        total = self._tokens.clamp_min(1).double()
        metrics = {
            "ratio_mean": (self._grown + self._tokens) / total,
            "ratio_max": self._largest,
            "approx_kl": self._divergence / total,
        }
        if self._clips is not None:
            metrics["clip_fraction"] = self._clips / total
        return {name: value.to(dtype) for name, value in metrics.items()}


def _largest_ratio(grown: Tensor, inside: Tensor) -> Tensor:
    """Return the largest ratio of ``[batch, sequence]`` less 1, 0 outside the mask."""
    largest = grown.amax()
    # Above 0 it is a token's; else what is outside may be larger. An accelerator need not wait for the answer.
    if grown.device.type == "cpu" and float(largest) > 0:
        return largest + 1
    return blank(grown + 1, inside).amax()


@torch.no_grad()
def ratio_metrics(difference: Tensor, mask: Tensor, clipped: Tensor | None = None) -> Metrics:
    """Report what :class:`RatioSums` does.

    Arguments are ``[batch, sequence]``, ``difference`` 0 outside the mask; metrics are scalars.
    """
    inside = as_bool(mask)
    sums = RatioSums(inside, clips=clipped is not None)
    for rows in slabs(difference):
        limited = difference[rows].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        sums.add(limited, inside[rows], None if clipped is None else clipped[rows] & inside[rows])
    return sums.metrics(difference.dtype)


def check_clip(clip_low: float, clip_high: float) -> None:
    """Refuse clip ranges that cannot work.

    Raises:
        ValueError: One is negative.
    """
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip ranges must not be negative, got clip_low={clip_low}, clip_high={clip_high}.")
