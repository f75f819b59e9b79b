"""REINFORCE with clipping, weights and regularisers to choose from: REC."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import Metrics, log_ratio, per_token, ratio_metrics, segment_mean, to_ratio
from roll.algorithms.masking import blank
from roll.algorithms.registry import register_loss

ClipMode = Literal["none", "one-side", "gspo-one-side", "two-side", "ring"]
Weight = Literal[
    "none", "importance_sampling", "truncated_importance_sampling", "gspo_importance_sampling", "advantage"
]
Regularizer = Literal["none", "k2", "forward-kl"]

_CHOICES: Final = {"clip_mode": get_args(ClipMode), "weight": get_args(Weight), "regularizer": get_args(Regularizer)}


@register_loss("rec")
def rec(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_mode: ClipMode = "none",
    weight: Weight = "none",
    regularizer: Regularizer = "none",
    regularizer_coef: float = 0.0,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    epsilon_low_prime: float = 0.6,
    epsilon_high_prime: float = 2.0,
    temp: float = 1.0,
) -> tuple[Tensor, Metrics]:
    """``-w * A * log pi`` where the ratio r is in range, 0 elsewhere, plus a regulariser; no gradient through r.

    Ranges, by ``clip_mode``: ``two-side``: r in [1 - ``epsilon_low``, 1 + ``epsilon_high``]; ``one-side``: r at most
    the upper bound where A >= 0, at least the lower one where A <= 0; ``gspo-one-side``: the same of the sequence's
    ratio s, the geometric mean of those of its tokens; ``ring``: those of ``two-side``, and r up to
    1 - ``epsilon_low_prime`` where A >= 0, from 1 + ``epsilon_high_prime`` on where A <= 0; ``none``: any.

    Args:
        log_probs: ``[batch, sequence]``.
        old_log_probs: ``[batch, sequence]``.
        advantages: ``[batch, sequence]`` or ``[batch]``.
        mask: ``[batch, sequence]``.
        clip_mode: Which tokens count.
        weight: w: 1, r, r within 1 - ``epsilon_low_prime`` and 1 + ``epsilon_high_prime``, s, or ``exp(A / temp)``.
        regularizer: ``k2``: coefficient times the square of log r; ``forward-kl``: minus it times ``log pi``.
        regularizer_coef: The coefficient, >= 0.
        epsilon_low: In (0, 1].
        epsilon_high: > 0.
        epsilon_low_prime: In (0, 1].
        epsilon_high_prime: > 0.
        temp: Temperature of the weight ``advantage``, > 0.

    Returns:
        ``(loss [batch, sequence], metrics)``.

    Raises:
        ValueError: An option is unknown or out of its range.

    Source: Yao et al. 2025, Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm; Trinity-RFT.
    """
    _require_known(clip_mode=clip_mode, weight=weight, regularizer=regularizer)
    lows, highs = (epsilon_low, epsilon_low_prime), (epsilon_high, epsilon_high_prime)
    if not all(0 < low <= 1 for low in lows) or min(*highs, temp) <= 0 or regularizer_coef < 0:
        raise ValueError("rec: lower epsilons lie in (0, 1], upper ones and temp above 0, regularizer_coef from 0 on.")
    spread, known = per_token(advantages, mask), blank(log_probs, mask)
    difference = log_ratio(log_probs, old_log_probs, mask)
    ratio = to_ratio(difference.detach())
    of_sequence = to_ratio(segment_mean(difference.detach(), mask))
    ranges = ((1 - epsilon_low, 1 + epsilon_high), (1 - epsilon_low_prime, 1 + epsilon_high_prime))
    inside = _in_range(clip_mode, of_sequence if clip_mode == "gspo-one-side" else ratio, spread, *ranges)
    weights = {
        "importance_sampling": ratio,
        "truncated_importance_sampling": ratio.clamp(*ranges[1]),
        "gspo_importance_sampling": of_sequence,
        "advantage": (spread / temp).exp(),
    }.get(weight, torch.ones_like(ratio))
    loss = torch.where(inside, -weights * spread * known, 0.0)
    if regularizer == "k2":
        loss = loss + regularizer_coef * difference.square()
    elif regularizer == "forward-kl":
        loss = loss - regularizer_coef * known
    return blank(loss, mask), ratio_metrics(difference, mask, ~inside)


def _require_known(**options: str) -> None:
    for name, chosen in options.items():
        if chosen not in _CHOICES[name]:
            raise ValueError(f"rec: {name} must be one of {', '.join(_CHOICES[name])}, got {chosen!r}.")


def _in_range(
    mode: ClipMode, ratio: Tensor, advantages: Tensor, near: tuple[float, float], far: tuple[float, float]
) -> Tensor:
    """Return which tokens count, by the ratio that a mode compares; ``far`` is what ``ring`` lies beyond."""
    above, below = ratio >= near[0], ratio <= near[1]
    rises, falls = advantages >= 0, advantages <= 0
    if mode == "none":
        return torch.ones_like(below)
    if mode in ("one-side", "gspo-one-side"):
        return (below & rises) | (above & falls)
    inside = below & above
    return inside if mode == "two-side" else inside | (rises & (ratio <= far[0])) | (falls & (ratio >= far[1]))
