"""Policy losses of the form ``-weight * A * log pi``: vanilla, TOPR, TIS, Kimi k1.5, OPMD.

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
from roll.algorithms.masking import blank
from roll.algorithms.registry import register_loss


@register_loss("vanilla")
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


@register_loss("kimi15")
def kimi15(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, tau: float = 1.0
) -> tuple[Tensor, Metrics]:
    """Kimi k1.5 mirror descent: ``-A * log pi + tau / 2 * (log pi - log pi_old)^2``.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        tau: Strength of the pull towards the old policy, >= 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``tau`` is negative.

    Source: Kimi Team 2025, Kimi k1.5, equation 3, applied per token.
    """
    if tau < 0:
        raise ValueError(f"kimi15: tau must not be negative, got {tau}.")
    difference = log_ratio(log_probs, old_log_probs, mask)
    limited = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    loss = -per_token(advantages, mask) * blank(log_probs, mask) + 0.5 * tau * limited.square()
    return blank(loss, mask), ratio_metrics(difference, mask)


@register_loss("opmd")
def opmd(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, tau: float = 1.0
) -> tuple[Tensor, Metrics]:
    """Online policy mirror descent: ``-A * log pi / (1 + tau)``; pair it with the estimator ``opmd``.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        tau: Temperature of the regularisation, >= 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``tau`` is negative.

    Source: Pan et al. 2025, Trinity-RFT (its note on OPMD), after Kimi Team 2025, Kimi k1.5.
    """
    if tau < 0:
        raise ValueError(f"opmd: tau must not be negative, got {tau}.")
    loss, metrics = vanilla(log_probs, old_log_probs, advantages, mask)
    return loss / (1.0 + tau), metrics
