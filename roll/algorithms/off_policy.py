"""Correction for a sampler whose probabilities differ from the trainer's (other kernels, precision, older weights)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import LOG_RATIO_LIMIT, segment_mean, segment_sum, to_ratio
from roll.algorithms.masking import as_bool, blank, slabs

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
    if mode == "geometric_sequence":
        level = "geometric"
    weights = torch.zeros_like(inside, dtype=torch.result_type(old_log_probs, sampler_log_probs))
    measured = []
    for rows in slabs(inside):
        kept, sampler = inside[rows], blank(sampler_log_probs[rows], inside[rows])
        difference = blank(old_log_probs[rows], kept) - sampler
        turns = None if turn_ids is None else turn_ids[rows]
        touched = torch.zeros_like(kept)
        if mode is None:
            weights[rows] = kept
        else:
            ratio = to_ratio(_lift(difference, kept, level, turns))
            touched = ratio > cap if mode == "tis" else (ratio < low) | (ratio > high)
            weights[rows] = blank(ratio.clamp_max(cap) if mode == "tis" else (~touched).to(ratio.dtype), kept)
        measured.append(_sums(difference, sampler, weights[rows], touched, kept))
    return weights, _metrics(measured, torch.count_nonzero(inside), weights)


def _lift(difference: Tensor, mask: Tensor, level: str, turn_ids: Tensor | None) -> Tensor:
    """Return the log-ratio of the token, segment or sequence each token belongs to, ``[batch, sequence]``."""
    if level == "token":
        return difference
    if level == "geometric":
        return segment_mean(difference, mask)
    return segment_sum(difference, mask, turn_ids if level == "segment" else None)


_MEANS = ("ratio_mean", "kl", "kl_k3", "probability_gap", "weight_mean", "corrected_fraction")


def _sums(difference: Tensor, sampler: Tensor, weights: Tensor, touched: Tensor, mask: Tensor) -> Tensor:
    """Describe the disagreement of trainer and sampler of some rows, and what was done about it.

    Returns:
        ``[7]``: the sums over tokens of what :data:`_MEANS` names, and the largest ratio.
    """
    limited = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = limited.exp()
    largest = blank(ratio, mask).amax()
    probability_gap = (sampler.exp() - (sampler + difference).exp()).abs()
    per_token = (ratio, -difference, torch.expm1(limited) - limited, probability_gap, weights, touched.to(ratio.dtype))
    return torch.stack([*(blank(each, mask).sum() for each in per_token), largest])


def _metrics(measured: list[Tensor], tokens: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return the metrics of what :func:`_sums` returned of all rows."""
    found = torch.stack(measured) if measured else weights.new_zeros(1, len(_MEANS) + 1)
    means = found[:, :-1].sum(0) / tokens.clamp_min(1)
    named = {f"sampler/{name}": mean for name, mean in zip(_MEANS, means.unbind(), strict=True)}
    return {**named, "sampler/ratio_max": found[:, -1].amax()}


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
