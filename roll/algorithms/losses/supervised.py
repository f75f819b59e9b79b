"""Losses that imitate or compare answers: SFT, MIX (GRPO beside SFT), DPO and IPO."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from roll.algorithms.losses.clipped import ppo
from roll.algorithms.losses.ratio import Metrics, log_ratio, ratio_metrics
from roll.algorithms.masking import as_bool, blank, masked_mean
from roll.algorithms.registry import register_loss


def sft(log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood: ``-log pi`` on the mask.

    Args:
        log_probs: ``[batch, sequence]``.
        mask: ``[batch, sequence]``.

    Returns:
        ``(loss [batch, sequence], metrics)``; the metric ``nll`` is the mean per token in nats.
    """
    loss = -blank(log_probs, mask)
    return loss, {"nll": masked_mean(loss.detach(), mask)}


@register_loss("sft")
def _sft(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    return sft(log_probs, mask)


@register_loss("mix", needs=("expert",))
def mix(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    expert: Tensor | None = None,
    mu: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Tensor, Metrics]:
    """``(1 - mu) * GRPO + mu * SFT``.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``, group relative.
        mask: ``[batch, sequence]``.
        expert: ``[batch]`` bool: samples written by an expert are imitated, the others reinforced; ``None`` applies
            both terms to every sample.
        mu: Weight of imitation, in [0, 1].
        clip_low: As in :func:`ppo`.
        clip_high: As in :func:`ppo`.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``mu`` lies outside [0, 1].

    Source: Trinity-RFT, MIX algorithm.
    """
    if not 0.0 <= mu <= 1.0:
        raise ValueError(f"mix: mu must lie in [0, 1], got {mu}.")
    policy, metrics = ppo(log_probs, old_log_probs, advantages, mask, clip_low, clip_high)
    imitation, _ = sft(log_probs, mask)
    if expert is None:
        return (1 - mu) * policy + mu * imitation, metrics
    imitate = as_bool(expert).unsqueeze(-1)
    own = as_bool(mask) & ~imitate
    metrics = ratio_metrics(log_ratio(log_probs.detach(), old_log_probs, own), own)
    return torch.where(imitate, mu * imitation, (1 - mu) * policy), metrics


def dpo(
    chosen_log_probs: Tensor,
    rejected_log_probs: Tensor,
    ref_chosen_log_probs: Tensor,
    ref_rejected_log_probs: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    loss_type: Literal["sigmoid", "ipo"] = "sigmoid",
) -> tuple[Tensor, Metrics]:
    """Direct preference optimization over pairs of answers.

    With ``h = (log pi(chosen) - log pi_ref(chosen)) - (log pi(rejected) - log pi_ref(rejected))``:
    ``sigmoid``: ``-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)`` with label smoothing e;
    ``ipo``: ``(h - 1 / (2 beta))^2``.

    Args:
        chosen_log_probs: ``[pairs]``, summed over the response tokens (averaged for ``ipo``).
        rejected_log_probs: ``[pairs]``.
        ref_chosen_log_probs: ``[pairs]``, of the reference policy.
        ref_rejected_log_probs: ``[pairs]``, of the reference policy.
        beta: Strength of the pull towards the reference, > 0.
        label_smoothing: Probability that a label is wrong, in [0, 0.5).
        loss_type: Which one.

    Returns:
        ``(loss [pairs], metrics)``: implicit rewards, their margin, and the share of pairs ranked right.

    Raises:
        ValueError: An option is out of range or unknown.

    Source: Rafailov et al. 2023, DPO; Mitchell 2023 (conservative DPO); Azar et al. 2023, IPO.
    """
    if beta <= 0:
        raise ValueError(f"dpo: beta must be positive, got {beta}.")
    if not 0.0 <= label_smoothing < 0.5:
        raise ValueError(f"dpo: label_smoothing must lie in [0, 0.5), got {label_smoothing}.")
    chosen = chosen_log_probs - ref_chosen_log_probs
    rejected = rejected_log_probs - ref_rejected_log_probs
    margin = chosen - rejected
    if loss_type == "sigmoid":
        right, wrong = F.logsigmoid(beta * margin), F.logsigmoid(-beta * margin)
        loss = -(1 - label_smoothing) * right - label_smoothing * wrong
    elif loss_type == "ipo":
        loss = (margin - 1 / (2 * beta)).square()
    else:
        raise ValueError(f"dpo: loss_type must be 'sigmoid' or 'ipo', got {loss_type!r}.")
    with torch.no_grad():
        pairs = max(margin.numel(), 1)
        metrics = {
            "reward_chosen": (beta * chosen).sum() / pairs,
            "reward_rejected": (beta * rejected).sum() / pairs,
            "reward_margin": (beta * margin).sum() / pairs,
            "accuracy": (margin > 0).to(margin.dtype).sum() / pairs,
        }
    return loss, metrics
