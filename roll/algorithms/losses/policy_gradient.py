"""Policy losses of the form ``-weight * A * log pi``: vanilla, TOPR, TIS, sPPO.

All take ``log_probs, old_log_probs, advantages, mask`` (``[batch, sequence]``; advantages may be ``[batch]``) and
return ``(loss [batch, sequence], metrics)``, not aggregated and 0 outside the mask. Gradients flow through
``log_probs`` only.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import (
    LOG_RATIO_LIMIT,
    Metrics,
    log_ratio,
    per_token,
    ratio_metrics,
    to_ratio,
)
from roll.algorithms.losses.row_blocks import in_row_blocks
from roll.algorithms.masking import blank
from roll.algorithms.registry import register_loss


@register_loss("vanilla")
@in_row_blocks
def vanilla(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """REINFORCE: ``-A * log pi``; ``old_log_probs`` serve the metrics only.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Source: Williams 1992, REINFORCE.
    """
    loss = -per_token(advantages, mask) * blank(log_probs, mask)
    return loss, ratio_metrics(log_ratio(log_probs, old_log_probs, mask), mask)


@register_loss("topr")
@in_row_blocks
def topr(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    level: Literal["token", "sequence"] = "token",
) -> tuple[Tensor, Metrics]:
    """Tapered off-policy REINFORCE: positives as in SFT, negatives weighted by the ratio truncated to [0, 1].

    ``A > 0``: ``-positive_weight * A * log pi``; ``A <= 0``: ``-negative_weight * sg(min(r, 1)) * A * log pi``.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        positive_weight: ``topr_positive_weight``.
        negative_weight: ``topr_negative_weight``.
        level: ``"token"``: each token's ratio; ``"sequence"``: the product over the sequence, as in the paper.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``level`` is unknown.

    Source: Le Roux et al. 2025, Tapered Off-Policy REINFORCE.
    """
    if level not in ("token", "sequence"):
        raise ValueError(f"topr: level must be 'token' or 'sequence', got {level!r}.")
    spread = per_token(advantages, mask)
    difference = log_ratio(log_probs, old_log_probs, mask)
    exponent = difference.detach()
    if level == "sequence":
        exponent = exponent.sum(1, keepdim=True).expand_as(exponent)
    tapered = exponent.clamp(-LOG_RATIO_LIMIT, 0.0).exp()
    weight = torch.where(spread > 0, positive_weight, negative_weight * tapered)
    loss = -weight * spread * blank(log_probs, mask)
    return blank(loss, mask), ratio_metrics(difference, mask, (spread < 0) & (exponent > 0))


@register_loss("tis")
@in_row_blocks
def tis(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, cap: float = 2.0
) -> tuple[Tensor, Metrics]:
    """Truncated importance sampling: ``-sg(min(r, cap)) * A * log pi``.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        cap: Largest weight, > 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``cap`` is not positive.

    Source: Espeholt et al. 2018, IMPALA (truncated importance weights); Yao et al. 2025, Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training.
    """
    if cap <= 0:
        raise ValueError(f"tis: cap must be positive, got {cap}.")
    difference = log_ratio(log_probs, old_log_probs, mask)
    ratio = to_ratio(difference.detach())
    loss = -ratio.clamp_max(cap) * per_token(advantages, mask) * blank(log_probs, mask)
    return blank(loss, mask), ratio_metrics(difference, mask, ratio > cap)


@register_loss("sppo")
@in_row_blocks
def sppo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, epsilon: float = 0.3
) -> tuple[Tensor, Metrics]:
    """Softmax PPO: ``-A * (log pi - log pi_old)`` where the ratio lies in [1 / (1 + epsilon), 1 + epsilon], else 0.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        epsilon: How far the ratio may go, > 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``epsilon`` is not positive.

    Source: Vaswani et al. 2021, A General Class of Surrogate Functions for Stable and Efficient Reinforcement Learning;
    per token as in Trinity-RFT.
    """
    if epsilon <= 0:
        raise ValueError(f"sppo: epsilon must be positive, got {epsilon}.")
    difference = log_ratio(log_probs, old_log_probs, mask)
    ratio = to_ratio(difference.detach())
    inside = (ratio >= 1.0 / (1.0 + epsilon)) & (ratio <= 1.0 + epsilon)
    loss = torch.where(inside, -per_token(advantages, mask) * difference, 0.0)
    return blank(loss, mask), ratio_metrics(difference, mask, ~inside)
