"""The critic's loss, and the sum of a policy loss with entropy, KL and imitation terms."""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import Metrics
from roll.algorithms.masking import as_bool, blank, masked_mean


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


def combine(
    policy_loss: Tensor,
    mask: Tensor,
    *,
    rl_loss_coef: float = 1.0,
    entropy: Tensor | None = None,
    entropy_loss_coef: float = 0.0,
    kl: Tensor | None = None,
    kl_loss_coef: float = 0.0,
    log_probs: Tensor | None = None,
    positive: Tensor | None = None,
    sft_loss_coef: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Sum the terms of the actor's loss per token, to be aggregated together.

    ``w * rl_loss_coef * policy - entropy_loss_coef * H + kl_loss_coef * kl - sft_loss_coef * [positive] * log pi``.

    Args:
        policy_loss: ``[batch, sequence]``.
        mask: ``[batch, sequence]``.
        rl_loss_coef: Weight of ``policy_loss``.
        entropy: ``[batch, sequence]``, of the policy; needed for a nonzero coefficient.
        entropy_loss_coef: Weight of the entropy bonus.
        kl: ``[batch, sequence]``, from :func:`roll.algorithms.kl.kl_penalty`; needed for a nonzero coefficient.
        kl_loss_coef: Weight of the divergence.
        log_probs: ``[batch, sequence]``; needed for a nonzero ``sft_loss_coef``.
        positive: ``[batch]`` bool, the samples to imitate; needed for a nonzero ``sft_loss_coef``.
        sft_loss_coef: Weight of the imitation of positive samples.
        weights: ``[batch]`` or ``[batch, sequence]``, of the policy term (sample weights, sampler correction).

    Returns:
        ``[batch, sequence]``, 0 outside the mask.

    Raises:
        ValueError: A coefficient is nonzero and what it weighs is missing.
    """
    total = rl_loss_coef * blank(policy_loss, mask)
    if weights is not None:
        total = total * (weights.unsqueeze(-1) if weights.dim() == 1 else blank(weights, mask)).to(total.dtype)
    if entropy_loss_coef:
        total = total - entropy_loss_coef * blank(_given(entropy, "entropy", "entropy_loss_coef"), mask)
    if kl_loss_coef:
        total = total + kl_loss_coef * blank(_given(kl, "kl", "kl_loss_coef"), mask)
    if sft_loss_coef:
        imitated = as_bool(_given(positive, "positive", "sft_loss_coef")).unsqueeze(-1) & as_bool(mask)
        total = total - sft_loss_coef * blank(_given(log_probs, "log_probs", "sft_loss_coef"), imitated)
    return total


def _given(tensor: Tensor | None, name: str, coefficient: str) -> Tensor:
    """Return ``tensor``, or say that a coefficient weighs nothing."""
    if tensor is None:
        raise ValueError(f"{coefficient} is not 0 but {name} is missing: pass it, or set {coefficient} to 0.")
    return tensor
