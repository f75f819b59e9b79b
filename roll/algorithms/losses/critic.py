"""The loss of the critic."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import Metrics
from roll.algorithms.masking import blank, masked_mean


def value(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange_value: float | None = 0.2
) -> tuple[Tensor, Metrics]:
    """Critic loss: ``1/2 * max((v - R)^2, (clip(v, v_old +- cliprange_value) - R)^2)``.

    Args:
        values: ``[batch, sequence]``, of the critic being trained.
        old_values: ``[batch, sequence]``, of the critic at the start of the step.
        returns: ``[batch, sequence]``.
        mask: ``[batch, sequence]``.
        cliprange_value: Largest move that pays, > 0; ``None`` for the plain squared error.

    Returns:
        ``(loss [batch, sequence], metrics)``, not aggregated, 0 outside the mask.

    Raises:
        ValueError: ``cliprange_value`` is not positive.

    Source: Schulman et al. 2017, PPO (reference implementation).
    """
    if cliprange_value is not None and cliprange_value <= 0:
        raise ValueError(f"cliprange_value must be positive or null, got {cliprange_value}.")
    now, target = blank(values, mask), blank(returns, mask)
    error = (now - target).square()
    metrics: Metrics = {}
    if cliprange_value is not None:
        before = blank(old_values, mask)
        moved = torch.clamp(now, before - cliprange_value, before + cliprange_value)
        bounded = (moved - target).square()
        metrics["value_clip_fraction"] = masked_mean((bounded > error).to(error.dtype), mask).detach()
        error = torch.maximum(error, bounded)
    with torch.no_grad():
        metrics["value_mean"] = masked_mean(now, mask)
        metrics["value_error"] = masked_mean((now - target).abs(), mask)
    return blank(0.5 * error, mask), metrics
