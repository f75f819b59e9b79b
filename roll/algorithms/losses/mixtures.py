"""Losses of a policy's own samples beside those that an expert wrote: MIX, CHORD, LUFFY."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roll.algorithms.losses.clipped import ppo
from roll.algorithms.losses.ratio import Metrics, log_ratio, per_token, ratio_metrics
from roll.algorithms.losses.supervised import sft
from roll.algorithms.masking import as_bool, blank
from roll.algorithms.registry import register_loss


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


def mu_schedule(step: Tensor, warmup_steps: int, decay_steps: int, peak: float, valley: float) -> Tensor:
    """Return the weight of imitation at training steps: up to ``peak`` in a line, down to ``valley`` in a cosine.

    Args:
        step: Training steps, counted from 1; of any shape, which is that of the result (float64).
        warmup_steps: Steps of the line from 0; 0 starts at the peak.
        decay_steps: Steps of the cosine after it; 0 goes to the valley at once.
        peak: The highest weight.
        valley: The weight at the end.

    Source: Zhang et al. 2025, On-Policy RL Meets Off-Policy Experts (CHORD-mu); Trinity-RFT.
    """
    at = step.double()
    rising = at / max(warmup_steps, 1) * peak
    through = ((at - warmup_steps) / max(decay_steps, 1)).clamp(0.0, 1.0)
    falling = valley + (peak - valley) * 0.5 * (1.0 + torch.cos(math.pi * through))
    falling = torch.where(at >= warmup_steps + decay_steps, torch.full_like(at, valley), falling)
    return torch.where(at < warmup_steps, rising, falling)


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
        ``(loss [batch, sequence], metrics)``; metrics are of the own samples.

    Raises:
        ValueError: ``mu`` lies outside [0, 1].

    Source: Pan et al. 2025, Trinity-RFT (MIX).
    """
    _check_share("mix: mu", mu)
    policy, metrics = _own(log_probs, old_log_probs, advantages, mask, expert, clip_low, clip_high, dual_clip)
    imitation, _ = sft(log_probs, mask)
    weight = torch.full(expert.shape, mu, dtype=torch.float64, device=mask.device)
    return _two_means(policy, imitation, weight, expert, mask, mixture), metrics


@register_loss("chord", needs=("expert", "step"), uses=("mixture",))
def chord(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    expert: Tensor,
    step: Tensor,
    mixture: Tensor | None = None,
    mu_warmup_steps: int = 0,
    mu_decay_steps: int = 0,
    mu_peak: float = 0.1,
    mu_valley: float = 0.1,
    enable_phi_function: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Metrics]:
    """:func:`mix` with a weight of imitation that training steps change, and one of each of the expert's tokens.

    A token that the policy gives the probability p weighs ``p * (1 - p)``: what it knows already, and what it would
    never say, hardly count, so imitation does not push the policy far off what it samples.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``, group relative.
        mask: ``[batch, sequence]``.
        expert: ``[batch]`` bool, as in :func:`mix`.
        step: ``[batch]`` int, the training step, counted from 1, the same in every row.
        mixture: ``[batch]``, as in :func:`mix`.
        mu_warmup_steps: See :func:`mu_schedule`.
        mu_decay_steps: See :func:`mu_schedule`.
        mu_peak: See :func:`mu_schedule`; in [0, 1].
        mu_valley: See :func:`mu_schedule`; in [0, 1].
        enable_phi_function: Weigh the expert's tokens by ``p * (1 - p)``, without a gradient through it.
        clip_low: As in :func:`ppo`.
        clip_high: As in :func:`ppo`.
        dual_clip: As in :func:`ppo`; Trinity-RFT's is 3.

    Returns:
        ``(loss [batch, sequence], metrics)``; metrics are of the own samples, ``mu`` is the weight at this step.

    Raises:
        ValueError: A weight lies outside [0, 1], or a number of steps is negative.

    Source: Zhang et al. 2025, On-Policy RL Meets Off-Policy Experts (CHORD); its conventions are Trinity-RFT's.
    """
    _check_share("chord: mu_peak", mu_peak)
    _check_share("chord: mu_valley", mu_valley)
    if mu_warmup_steps < 0 or mu_decay_steps < 0:
        raise ValueError(f"chord: numbers of steps must not be negative, got {mu_warmup_steps} and {mu_decay_steps}.")
    policy, metrics = _own(log_probs, old_log_probs, advantages, mask, expert, clip_low, clip_high, dual_clip)
    imitation, _ = sft(log_probs, mask)
    if enable_phi_function:
        known = blank(log_probs, mask).detach().exp()
        imitation = imitation * (known * (1.0 - known))
    mu = mu_schedule(step, mu_warmup_steps, mu_decay_steps, mu_peak, mu_valley)
    metrics["mu"] = mu.mean().to(log_probs.dtype) if len(mu) else log_probs.new_zeros(())
    return _two_means(policy, imitation, mu, expert, mask, mixture), metrics


@register_loss("luffy", needs=("expert",))
def luffy(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    expert: Tensor,
    shaping: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Metrics]:
    """PPO of own samples, and ``-A * p / (p + shaping)`` of the expert's, whose probability counts as 1; one mean.

    The gradient of a token of the expert is ``shaping * p / (p + shaping)^2`` times that of ``-A * log p``: largest
    where p is ``shaping``, so that also what the policy hardly ever says is learned.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``; of the expert's samples not read.
        advantages: ``[batch, sequence]`` or ``[batch]``; the expert's samples took part in the groups of their prompts.
        mask: ``[batch, sequence]``.
        expert: ``[batch]`` bool: samples written by an expert.
        shaping: The paper's gamma, > 0.
        clip_low: As in :func:`ppo`.
        clip_high: As in :func:`ppo`.
        dual_clip: As in :func:`ppo`.

    Returns:
        ``(loss [batch, sequence], metrics)``; metrics are of the own samples.

    Raises:
        ValueError: ``shaping`` is not positive.

    Source: Yan et al. 2025, Learning to Reason under Off-Policy Guidance (LUFFY), equations 4 to 6.
    """
    if shaping <= 0:
        raise ValueError(f"luffy: shaping must be positive, got {shaping}.")
    policy, metrics = _own(log_probs, old_log_probs, advantages, mask, expert, clip_low, clip_high, dual_clip)
    shaped = torch.sigmoid(blank(log_probs, mask) - math.log(shaping))
    guided = blank(-per_token(advantages, mask) * shaped, mask)
    return torch.where(as_bool(expert).unsqueeze(-1), guided, policy), metrics


def _own(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    expert: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Metrics]:
    """Return PPO's loss, 0 in the expert's rows, and its metrics."""
    own = as_bool(mask) & ~as_bool(expert).unsqueeze(-1)
    policy, _ = ppo(log_probs, old_log_probs, advantages, own, clip_low, clip_high, dual_clip)
    return policy, ratio_metrics(log_ratio(log_probs.detach(), old_log_probs, own), own)


def _two_means(
    policy: Tensor, imitation: Tensor, mu: Tensor, expert: Tensor, mask: Tensor, mixture: Tensor | None
) -> Tensor:
    """Weigh own rows of ``policy`` and the expert's of ``imitation`` so that each kind is divided by its own number."""
    factors = expert_mixture(expert, mask) if mixture is None else mixture
    written = as_bool(expert)
    weights = factors * torch.where(written, mu, 1.0 - mu)
    return torch.where(written.unsqueeze(-1), imitation, policy) * weights.to(policy.dtype).unsqueeze(-1)


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}.")
