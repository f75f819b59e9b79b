"""Correction for a sampler whose probabilities differ from the trainer's (other kernels, precision, older weights)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import LOG_RATIO_LIMIT, log_ratio, segment_mean, segment_sum, to_ratio
from roll.algorithms.masking import as_bool, blank, masked_mean

Mode = Literal["tis", "mask", "geometric_sequence"]
Level = Literal["token", "segment", "sequence", "geometric"]

_MODES = ("tis", "mask", "geometric_sequence")
_LEVELS = ("token", "segment", "sequence", "geometric")


@torch.no_grad()
def correction(
    old_log_probs: Tensor,
    sampler_log_probs: Tensor,
    mask: Tensor,
    *,
    mode: str | None = None,
    level: str = "token",
    cap: float = 2.0,
    low: float = 0.5,
    high: float = 2.0,
    turn_ids: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weigh tokens by how far trainer and sampler disagree, ``r = pi_old / pi_sampler``.

    ``mode``: ``None`` weighs nothing; ``tis``: ``min(r, cap)``; ``mask``: 1 inside [low, high], 0 outside;
    ``geometric_sequence``: ``mask`` on the geometric mean over the sequence, which keeps or drops it whole.

    ``level``, what r is taken over: ``token``; ``segment``: the product over the turn; ``sequence``: the product over
    the sequence; ``geometric``: the geometric mean over the sequence.

    Args:
        old_log_probs: ``[batch, sequence]``, recomputed by the trainer.
        sampler_log_probs: ``[batch, sequence]``, reported by the engine.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        mode: One of the names above, or ``None``.
        level: One of the names above.
        cap: Largest weight of ``tis``, > 0.
        low: Lower bound of the masks.
        high: Upper bound of the masks.
        turn_ids: ``[batch, sequence]`` int, needed by ``level="segment"``.

    Returns:
        ``(weights [batch, sequence], metrics)``: weights to multiply the policy loss with, 0 outside the mask, without
        gradient. The metrics describe the disagreement whether or not it is corrected.

    Raises:
        ValueError: ``mode`` or ``level`` is unknown, a bound is impossible, or ``turn_ids`` is missing.

    Source: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training; Zheng et al. 2025,
    GSPO (geometric mean).
    """
    _check(mode, level, cap, low, high, turn_ids)
    inside = as_bool(mask)
    difference = log_ratio(old_log_probs, sampler_log_probs, inside)
    if mode == "geometric_sequence":
        level = "geometric"
    ratio = to_ratio(_lift(difference, inside, level, turn_ids))
    if mode is None:
        weights, touched = torch.ones_like(ratio), torch.zeros_like(inside)
    elif mode == "tis":
        weights, touched = ratio.clamp_max(cap), ratio > cap
    else:
        touched = (ratio < low) | (ratio > high)
        weights = (~touched).to(ratio.dtype)
    metrics = _metrics(difference, blank(sampler_log_probs, inside), weights, touched, inside)
    return blank(weights, inside), metrics


def _lift(difference: Tensor, mask: Tensor, level: str, turn_ids: Tensor | None) -> Tensor:
    """Return the log-ratio of the token, segment or sequence each token belongs to, ``[batch, sequence]``."""
    if level == "token":
        return difference
    if level == "geometric":
        return segment_mean(difference, mask)
    return segment_sum(difference, mask, turn_ids if level == "segment" else None)


def _metrics(difference: Tensor, sampler: Tensor, weights: Tensor, touched: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Describe the disagreement of trainer and sampler per token, and what was done about it."""
    ratio = to_ratio(difference)
    limited = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    probability_gap = (sampler.exp() - (sampler + difference).exp()).abs()
    return {
        "sampler/ratio_mean": masked_mean(ratio, mask),
        "sampler/ratio_max": blank(ratio, mask).amax() if mask.numel() else ratio.sum(),
        "sampler/kl": masked_mean(-difference, mask),
        "sampler/kl_k3": masked_mean(torch.expm1(limited) - limited, mask),
        "sampler/probability_gap": masked_mean(probability_gap, mask),
        "sampler/weight_mean": masked_mean(weights, mask),
        "sampler/corrected_fraction": masked_mean(touched.to(ratio.dtype), mask),
    }


def _check(mode: str | None, level: str, cap: float, low: float, high: float, turn_ids: Tensor | None) -> None:
    """Raise ``ValueError`` for options that make no sense."""
    if mode is not None and mode not in _MODES:
        raise ValueError(f"sampler correction: unknown mode {mode!r}; known: {', '.join(_MODES)}, null.")
    if level not in _LEVELS:
        raise ValueError(f"sampler correction: unknown level {level!r}; known: {', '.join(_LEVELS)}.")
    if cap <= 0:
        raise ValueError(f"sampler correction: cap must be positive, got {cap}.")
    if not 0 <= low <= high:
        raise ValueError(f"sampler correction: need 0 <= low <= high, got low={low}, high={high}.")
    if level == "segment" and turn_ids is None:
        raise ValueError("sampler correction: level=segment needs turn_ids.")
