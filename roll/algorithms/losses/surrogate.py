"""The clipped surrogate of PPO with its gradient: one pass over blocks of rows each, and one tensor kept between them.

Composed of PyTorch's operations it would keep ten tensors for the way back and read each again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from roll.algorithms.losses.ratio import LOG_RATIO_LIMIT, Metrics, RatioSums
from roll.algorithms.masking import Blanking, slabs


def surrogate(
    ratio: Tensor, cost: Tensor, clip_low: float, clip_high: float, dual_clip: float | None, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``max(c r, c clip(r))`` with ``c = -A``, with the optional dual clip, and where the clip counts (bool).

    All tensors are ``[batch, sequence]``; the first result goes to ``out`` if that is given.

    Source: Schulman et al. 2017, PPO; Ye et al. 2020 (dual clip).
    """
    plain = cost * ratio
    bounded = cost * ratio.clamp(1 - clip_low, 1 + clip_high)
    clipped = bounded > plain
    loss = torch.maximum(plain, bounded, out=out)
    if dual_clip is not None:
        ceiling = cost * dual_clip
        capped = (cost > 0) & (loss > ceiling)
        loss = torch.where(capped, ceiling, loss, out=out) if out is not None else torch.where(capped, ceiling, loss)
        clipped = clipped | capped
    return loss, clipped


def clipped_surrogate(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Metrics]:
    """Return :func:`surrogate` of the ratio of both policies on the mask, and the metrics of the ratio.

    Args:
        log_probs: ``[batch, sequence]``; the only one that gets a gradient.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        clip_low: Distance below 1.
        clip_high: Distance above 1.
        dual_clip: Bound on the ratio of tokens with a negative advantage, or ``None``.

    Returns:
        ``(loss [batch, sequence], metrics)``, 0 outside the mask.
    """
    sums = RatioSums(mask, clips=True)
    differentiated = torch.is_grad_enabled() and log_probs.requires_grad
    options = (clip_low, clip_high, dual_clip)
    loss = _Surrogate.apply(log_probs, old_log_probs, advantages, mask, options, sums, differentiated)
    return loss, sums.metrics(loss.dtype)


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        options: tuple[float, float, float | None],
        sums: RatioSums,
        differentiated: bool,
    ) -> Tensor:
        dtype = torch.promote_types(torch.promote_types(log_probs.dtype, old_log_probs.dtype), advantages.dtype)
        loss = torch.empty(log_probs.shape, dtype=dtype, device=log_probs.device)
        weights = torch.empty_like(loss) if differentiated else None
        for rows in slabs(mask):
            within = Blanking(mask[rows])
            difference = log_probs[rows].to(dtype) - old_log_probs[rows].to(dtype)
            within.into(difference, difference)
            cost = -_spread(advantages[rows], difference)
            within.into(cost, cost)
            limited = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
            ratio = limited.exp()
            # 0 outside the mask, as the cost is.
            _, clipped = surrogate(ratio, cost, *options, out=loss[rows])
            sums.add(limited, within.inside, clipped)
            if weights is not None:
                Blanking(~(clipped | (difference.abs() > LOG_RATIO_LIMIT))).into(weights[rows], ratio)
        ctx.save_for_backward(weights, advantages, mask)
        ctx.dtype = log_probs.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, advantages, mask = ctx.saved_tensors
        result = torch.empty_like(weights)
        for rows in slabs(mask):
            slope = gradients[0][rows] * _spread(advantages[rows], weights[rows])
            Blanking(mask[rows]).into(result[rows], slope.mul_(weights[rows]).neg_())
        return result.to(ctx.dtype), None, None, None, None, None, None


def _spread(advantages: Tensor, like: Tensor) -> Tensor:
    """Return ``[batch]`` or ``[batch, sequence]`` as ``[batch, sequence]`` of the dtype of ``like``."""
    advantages = advantages.to(like.dtype)
    return advantages.unsqueeze(-1).expand(like.shape) if advantages.dim() == 1 else advantages
