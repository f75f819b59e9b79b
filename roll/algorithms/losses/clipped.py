"""Policy losses that keep the ratio near 1 by clipping it: PPO, GSPO, GMPO, CISPO, SAPO.

All take ``log_probs, old_log_probs, advantages, mask`` (``[batch, sequence]``; advantages may be ``[batch]``) and
return ``(loss [batch, sequence], metrics)``, not aggregated and 0 outside the mask. Gradients flow through
``log_probs`` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import (
    Metrics,
    check_clip,
    log_ratio,
    per_token,
    ratio_metrics,
    segment_mean,
    to_ratio,
)
from roll.algorithms.losses.row_blocks import in_row_blocks
from roll.algorithms.losses.surrogate import clipped_surrogate, surrogate
from roll.algorithms.masking import blank
from roll.algorithms.registry import register_loss


@register_loss("ppo")
def ppo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Metrics]:
    """PPO: ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``; with ``dual_clip`` c, at most ``-A c`` where A < 0.

    Args:
        log_probs: ``[batch, sequence]``, of the policy being trained.
        old_log_probs: ``[batch, sequence]``, of the policy at the start of the step.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        clip_low: Distance below 1 (``neg_clip_ratio``).
        clip_high: Distance above 1 (``pos_clip_ratio``; ``pg_clip`` sets both).
        dual_clip: Bound c > 1 on the ratio of tokens with a negative advantage; 3 where ``dual_clip_loss`` is on.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: A clip range is negative or ``dual_clip`` is not above 1.

    Source: Schulman et al. 2017, PPO; Ye et al. 2020 (dual clip); Yu et al. 2025, DAPO (separate ranges).
    """
    check_clip(clip_low, clip_high)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}.")
    return clipped_surrogate(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, dual_clip)


@register_loss("gspo")
@in_row_blocks
def gspo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    turn_ids: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """GSPO: the PPO objective with the sequence ratio ``s = exp(sum(m d) / sum(m))``, ``d = log pi - log pi_old``.

    Every token carries ``s`` in the straight-through form ``sg(s) * pi / sg(pi)``, so each gets its own gradient.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        clip_low: Distance below 1; the geometric mean moves far less than one token's ratio.
        clip_high: Distance above 1.
        turn_ids: ``[batch, sequence]`` int: one ratio per turn instead of one per sequence (segment variant).

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Source: Zheng et al. 2025, Group Sequence Policy Optimization (GSPO-token).
    """
    check_clip(clip_low, clip_high)
    difference = log_ratio(log_probs, old_log_probs, mask)
    level = segment_mean(difference.detach(), mask, turn_ids)
    ratio = to_ratio(level + (difference - difference.detach()))
    loss, clipped = surrogate(ratio, -per_token(advantages, mask), clip_low, clip_high, None)
    return blank(loss, mask), ratio_metrics(level, mask, clipped)


@register_loss("gspo_segment", needs=("turn_ids",))
@in_row_blocks
def gspo_segment(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    turn_ids: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> tuple[Tensor, Metrics]:
    """GSPO with one ratio per turn; tensors ``[batch, sequence]`` and options as in :func:`gspo`.

    Source: Zheng et al. 2025, Group Sequence Policy Optimization.
    """
    return gspo(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, turn_ids)


@register_loss("gmpo")
@in_row_blocks
def gmpo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> tuple[Tensor, Metrics]:
    """GMPO: ``-A * exp(mean_t(clipped d_t))``, the geometric mean of clipped token ratios, on every token.

    ``d`` is clipped to ``[-clip_low, clip_high]`` (in log space) on the side that PPO clips: above where A > 0, below
    where A < 0.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        clip_low: Bound of the log-ratio below.
        clip_high: Bound of the log-ratio above.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Source: Zhao et al. 2025, Geometric-Mean Policy Optimization.
    """
    check_clip(clip_low, clip_high)
    spread = per_token(advantages, mask)
    difference = log_ratio(log_probs, old_log_probs, mask)
    bounded = difference.clamp(-clip_low, clip_high)
    # max(-A r, -A clip(r)) in log space: the smaller log-ratio where A > 0, the larger where A < 0.
    kept = torch.where(spread >= 0, torch.minimum(difference, bounded), torch.maximum(difference, bounded))
    loss = -spread * to_ratio(segment_mean(blank(kept, mask), mask))
    return blank(loss, mask), ratio_metrics(difference, mask, kept != difference)


@register_loss("cispo")
@in_row_blocks
def cispo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Tensor, Metrics]:
    """CISPO: ``-sg(clip(r, 1 - clip_low, 1 + clip_high)) * A * log pi``: the weight is clipped, no gradient is dropped.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        clip_low: Distance below 1; 1 or more sets no lower bound, as in the paper.
        clip_high: Distance above 1.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Source: MiniMax 2025, MiniMax-M1.
    """
    check_clip(clip_low, clip_high)
    difference = log_ratio(log_probs, old_log_probs, mask)
    ratio = to_ratio(difference.detach())
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -weight * per_token(advantages, mask) * blank(log_probs, mask)
    return blank(loss, mask), ratio_metrics(difference, mask, weight != ratio)


@register_loss("sapo")
@in_row_blocks
def sapo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> tuple[Tensor, Metrics]:
    """SAPO: ``-A * (4 / tau) * sigmoid(tau * (r - 1))``, a soft gate in the place of the clip, with slope 1 at r = 1.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        tau_positive: Sharpness of the gate where A > 0.
        tau_negative: Sharpness where A <= 0; larger decays faster.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: A sharpness is not positive.

    Source: Gao et al. 2025, Soft Adaptive Policy Optimization.
    """
    if tau_positive <= 0 or tau_negative <= 0:
        raise ValueError(f"sapo: tau must be positive, got {tau_positive} and {tau_negative}.")
    spread = per_token(advantages, mask)
    difference = log_ratio(log_probs, old_log_probs, mask)
    tau = torch.full_like(spread, tau_negative).masked_fill_(spread > 0, tau_positive)
    loss = -spread * (4 / tau) * torch.sigmoid(tau * (to_ratio(difference) - 1))
    return blank(loss, mask), ratio_metrics(difference, mask)
