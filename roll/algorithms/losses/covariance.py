"""Policy losses that hold on to entropy at the few tokens that spend most of it: Clip-Cov and KL-Cov.

How much an update lowers entropy at a token follows the covariance of its log-prob and its advantage. Both losses find
the tokens with a high one; Clip-Cov leaves some of them out, KL-Cov holds them to the old policy.

Which tokens these are depends on all tokens of an optimiser step. :func:`high_covariance` and
:func:`highest_covariance` choose them from the whole step, with the policy at its start; a loss without ``cov_tokens``
chooses among the tokens that it is given, with the policy being trained. Both are the same where a step is one batch
and on policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import Metrics, check_clip, log_ratio, per_token, ratio_metrics, to_ratio
from roll.algorithms.losses.surrogate import surrogate
from roll.algorithms.masking import as_bool, blank, masked_mean
from roll.algorithms.registry import register_loss


@torch.no_grad()
def covariances(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return ``(A - mean A) * (log pi - mean log pi)``, means over the mask; ``[batch, sequence]``, 0 outside the mask.

    Args:
        log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models.
    """
    spread = per_token(advantages, mask)
    centred = spread - masked_mean(spread, mask)
    return blank(centred * (blank(log_probs, mask) - masked_mean(log_probs, mask)), mask)


@torch.no_grad()
def high_covariance(
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    allowed: Tensor | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw the tokens that Clip-Cov leaves out, among those whose covariance lies between the bounds.

    Args:
        log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``: the tokens that are counted and over which means are taken.
        allowed: ``[batch, sequence]`` bool, which of them may be drawn; without it all.
        clip_cov_ratio: Share of the tokens of the mask that are drawn, at least one token.
        clip_cov_lb: Covariance above which a token may be drawn.
        clip_cov_ub: Covariance below which it may.
        generator: Source of the draw; without it torch's own.

    Returns:
        ``[batch, sequence]`` bool.

    Raises:
        ValueError: The share is not above 0, or the bounds are in the wrong order.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models (Clip-Cov).
    """
    _check_share("clip_cov_ratio", clip_cov_ratio)
    if clip_cov_lb >= clip_cov_ub:
        raise ValueError(f"clip_cov_lb must be below clip_cov_ub, got {clip_cov_lb} and {clip_cov_ub}.")
    spread = covariances(log_probs, advantages, mask)
    inside = as_bool(mask) if allowed is None else as_bool(mask) & allowed
    candidates = (inside & (spread > clip_cov_lb) & (spread < clip_cov_ub)).nonzero()
    wanted = max(int(clip_cov_ratio * int(as_bool(mask).sum())), 1)
    drawn = candidates[torch.randperm(len(candidates), generator=generator)[:wanted].to(candidates.device)]
    return _marked(drawn, mask)


@torch.no_grad()
def highest_covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor, *, kl_cov_ratio: float = 0.0002) -> Tensor:
    """Find the tokens with the highest covariance.

    Args:
        log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        kl_cov_ratio: Share of the tokens of the mask that are taken, at least one token.

    Returns:
        ``[batch, sequence]`` bool.

    Raises:
        ValueError: The share is not above 0.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models (KL-Cov).
    """
    _check_share("kl_cov_ratio", kl_cov_ratio)
    inside = as_bool(mask).nonzero()
    wanted = min(max(int(kl_cov_ratio * len(inside)), 1), len(inside))
    spread = covariances(log_probs, advantages, mask)[as_bool(mask)]
    return _marked(inside[torch.topk(spread, wanted).indices], mask)


@register_loss("clip_cov", whole_step={"cov_tokens": high_covariance})
def clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cov_tokens: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
) -> tuple[Tensor, Metrics]:
    """Clip-Cov: PPO, where a few tokens of high covariance are left out: their loss and their gradient are 0.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        cov_tokens: ``[batch, sequence]`` bool, the tokens to leave out; without it :func:`high_covariance` of what is
            given here, among the tokens that the ratio does not clip.
        clip_low: As in :func:`ppo`.
        clip_high: As in :func:`ppo`.
        clip_cov_ratio: As in :func:`high_covariance`.
        clip_cov_lb: As in :func:`high_covariance`.
        clip_cov_ub: As in :func:`high_covariance`.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: A clip range is negative, or an option is as :func:`high_covariance` refuses it.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models; verl.
    """
    check_clip(clip_low, clip_high)
    spread = per_token(advantages, mask)
    difference = log_ratio(log_probs, old_log_probs, mask)
    loss, clipped = surrogate(to_ratio(difference), -spread, clip_low, clip_high, None)
    if cov_tokens is None:
        cov_tokens = high_covariance(
            log_probs,
            advantages,
            mask,
            allowed=~clipped,
            clip_cov_ratio=clip_cov_ratio,
            clip_cov_lb=clip_cov_lb,
            clip_cov_ub=clip_cov_ub,
        )
    left_out = as_bool(cov_tokens) & as_bool(mask)
    metrics = ratio_metrics(difference, mask, clipped)
    metrics["cov_fraction"] = masked_mean(left_out.to(loss.dtype), mask)
    return blank(loss, as_bool(mask) & ~left_out), metrics


@register_loss("kl_cov", whole_step={"cov_tokens": highest_covariance})
def kl_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cov_tokens: Tensor | None = None,
    kl_cov_ratio: float = 0.0002,
    ppo_kl_coef: float = 0.1,
) -> tuple[Tensor, Metrics]:
    """KL-Cov: ``-A r``, plus ``ppo_kl_coef * |log r|`` at the tokens of highest covariance. No ratio is clipped.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        cov_tokens: ``[batch, sequence]`` bool, the tokens to hold; without it :func:`highest_covariance` of what is
            given here.
        kl_cov_ratio: As in :func:`highest_covariance`.
        ppo_kl_coef: Strength of the hold, >= 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: The share is not above 0, or the strength is negative.

    Source: Cui et al. 2025, The Entropy Mechanism of RL for Reasoning Language Models; verl.
    """
    _check_share("kl_cov_ratio", kl_cov_ratio)
    if ppo_kl_coef < 0:
        raise ValueError(f"ppo_kl_coef must not be negative, got {ppo_kl_coef}.")
    difference = log_ratio(log_probs, old_log_probs, mask)
    if cov_tokens is None:
        cov_tokens = highest_covariance(log_probs, advantages, mask, kl_cov_ratio=kl_cov_ratio)
    held = as_bool(cov_tokens) & as_bool(mask)
    loss = -per_token(advantages, mask) * to_ratio(difference) + ppo_kl_coef * blank(difference, held).abs()
    metrics = ratio_metrics(difference, mask)
    metrics["cov_fraction"] = masked_mean(held.to(loss.dtype), mask)
    return blank(loss, mask), metrics


def _marked(places: Tensor, mask: Tensor) -> Tensor:
    """Return ``[batch, sequence]`` bool, true at ``places`` ``[tokens, 2]``."""
    marked = torch.zeros(mask.shape, dtype=torch.bool, device=mask.device)
    marked[places[:, 0], places[:, 1]] = True
    return marked


def _check_share(name: str, share: float) -> None:
    if share <= 0:
        raise ValueError(f"{name} must be above 0, got {share}.")
