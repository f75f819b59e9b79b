"""Policy losses of mirror descent, which pull the policy towards the one that sampled: Kimi k1.5, OPMD in three forms.

All take ``log_probs, old_log_probs, advantages, mask`` (``[batch, sequence]``; advantages may be ``[batch]``) and
return ``(loss [batch, sequence], metrics)``, not aggregated and 0 outside the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.losses.policy_gradient import vanilla
from roll.algorithms.losses.ratio import (
    LOG_RATIO_LIMIT,
    Metrics,
    log_ratio,
    per_token,
    ratio_metrics,
    segment_mean,
    segment_sum,
)
from roll.algorithms.masking import blank, tokens_per_row
from roll.algorithms.registry import register_loss


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


@register_loss("opmd_kimi")
def opmd_kimi(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, tau: float = 1.0
) -> tuple[Tensor, Metrics]:
    """OPMD in the form of Kimi k1.5: ``(-A * log pi(y) + tau / 2 * (log pi(y) - log pi_old(y))^2) / max(1, tau)``.

    ``log pi(y)`` is the sum over a sequence: :func:`kimi15` with the square of the whole answer, not of each token. The
    square is spread evenly over the sequence's tokens.

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

    Source: Kimi Team 2025, Kimi k1.5, equation 3; Pan et al. 2025, Trinity-RFT (its note on OPMD).
    """
    if tau < 0:
        raise ValueError(f"opmd_kimi: tau must not be negative, got {tau}.")
    difference = log_ratio(log_probs, old_log_probs, mask)
    square = segment_mean(difference, mask) * segment_sum(difference, mask)
    loss = -per_token(advantages, mask) * blank(log_probs, mask) + 0.5 * tau * square
    return blank(loss, mask) / max(1.0, tau), ratio_metrics(difference, mask)


@register_loss("opmd_pairwise", needs=("groups",))
def opmd_pairwise(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, groups: Tensor, tau: float = 1.0
) -> tuple[Tensor, Metrics]:
    """OPMD in pairs: the sum over i < j of ``(a_i - a_j)^2 / (2 n tau (1 + tau))``, ``a = A - tau * log(pi / pi_old)``.

    At the optimum of reward less ``tau`` times the divergence from the old policy, all ``a`` of a group of n answers
    are the same; no normaliser of that optimum is needed. The sum over pairs is n times that of the squared distances
    from the group's mean, which has no gradient of its own here. A sequence's square is spread evenly over its tokens.
    The factor makes the gradient that of :func:`opmd` where the policy is still the old one.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``: scores, from whatever they were subtracted in a group; of a
            sequence whose tokens differ, their mean.
        mask: ``[batch, sequence]``.
        groups: ``[batch]`` int; rows with the same number are compared, so they must all be given at once.
        tau: Strength of the pull towards the old policy, > 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``tau`` is not positive.

    Source: Pan et al. 2025, Trinity-RFT (its note on OPMD, pairwise form).
    """
    if tau <= 0:
        raise ValueError(f"opmd_pairwise: tau must be positive, got {tau}.")
    difference = log_ratio(log_probs, old_log_probs, mask)
    reached = segment_mean(per_token(advantages, mask), mask) - tau * segment_sum(difference, mask)
    away = reached - _mean_of_group(reached.detach(), mask, groups)
    square = segment_mean(blank(away.square(), mask), mask)
    lengths = tokens_per_row(mask).clamp_min(1).unsqueeze(1)
    loss = square / lengths / (2.0 * tau * (1.0 + tau))
    return blank(loss, mask), ratio_metrics(difference.detach(), mask)


def _mean_of_group(per_row: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Return the mean over the group's rows that have a token of what all tokens of a row share, ``[batch, 1]``."""
    lengths = tokens_per_row(mask)
    counted = (lengths > 0).to(per_row.dtype)
    values = per_row.sum(1) / lengths.clamp_min(1)
    _, numbers = torch.unique(groups, return_inverse=True)
    sums, counts = (torch.zeros(len(groups), dtype=per_row.dtype, device=per_row.device) for _ in range(2))
    sums.index_add_(0, numbers, values * counted)
    counts.index_add_(0, numbers, counted)
    return (sums / counts.clamp_min(1))[numbers].unsqueeze(1)
