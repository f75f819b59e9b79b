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

    Source: Ouyang et al. 2022, InstructGPT (supervised fine-tuning).
    """
    loss = -blank(log_probs, mask)
    return loss, {"nll": masked_mean(loss.detach(), mask)}


@register_loss("sft")
def _sft(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    return sft(log_probs, mask)


@torch.no_grad()
def expert_mixture(expert: Tensor, mask: Tensor, mode: str = "token-mean") -> Tensor:
    """Return for each sample all there is over what there is of its kind, own or the expert's, ``[batch]`` float64.

    :func:`roll.algorithms.aggregation.aggregate` divides by the number of all tokens, or sequences, of an optimiser
    step; a loss times these factors is divided by the number of those of its kind.

    Args:
        expert: ``[batch]`` bool, the samples written by an expert. Of the whole optimiser step, before it is split.
        mask: ``[batch, sequence]``.
        mode: How the loss is aggregated: ``token-mean`` counts tokens, all others count sequences with a token.

    Source: Pan et al. 2025, Trinity-RFT (MIX).
    """
    tokens = as_bool(mask).sum(1).double()
    counted = tokens if mode == "token-mean" else (tokens > 0).double()
    written = as_bool(expert)
    own, theirs = (counted * ~written).sum(), (counted * written).sum()
    return counted.sum() / torch.where(written, theirs, own).clamp_min(1.0)


@register_loss("mix", needs=("expert",), uses=("mixture",))
def mix(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    expert: Tensor,
    mixture: Tensor | None = None,
    mu: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Metrics]:
    """``(1 - mu) * mean over own samples of PPO + mu * mean over the expert's of SFT``.

    These are two means: a hundred answers of one's own do not take weight from two of the expert.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``, group relative.
        mask: ``[batch, sequence]``.
        expert: ``[batch]`` bool: samples written by an expert are imitated, the others reinforced.
        mixture: ``[batch]``, :func:`expert_mixture` of the whole optimiser step; without it that of what is given here,
            for ``token-mean``.
        mu: Weight of imitation, in [0, 1].
        clip_low: As in :func:`ppo`.
        clip_high: As in :func:`ppo`.
        dual_clip: As in :func:`ppo`; Trinity-RFT's is 3.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: ``mu`` lies outside [0, 1].

    Source: Pan et al. 2025, Trinity-RFT (MIX).
    """
    if not 0.0 <= mu <= 1.0:
        raise ValueError(f"mix: mu must lie in [0, 1], got {mu}.")
    policy, _ = ppo(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, dual_clip)
    imitation, _ = sft(log_probs, mask)
    imitate = as_bool(expert).unsqueeze(-1)
    own = as_bool(mask) & ~imitate
    metrics = ratio_metrics(log_ratio(log_probs.detach(), old_log_probs, own), own)
    factors = expert_mixture(expert, mask) if mixture is None else mixture
    loss = torch.where(imitate, mu * imitation, (1 - mu) * policy)
    return loss * factors.to(loss.dtype).unsqueeze(-1), metrics


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
