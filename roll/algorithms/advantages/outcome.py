"""Estimators that give one advantage per sample ``[batch]`` from one score per sample."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor

from roll.algorithms.groups import AlgorithmWarning, GroupIds, Groups, encode

Scale = Literal["std", "none"]


def warn_groups_of_one(groups: Groups, estimator: str) -> None:
    """Warn when samples have nobody to be compared with."""
    lonely = int((groups.sizes() == 1).sum())
    if lonely:
        warnings.warn(
            f"{estimator}: {lonely} of {groups.count} groups have one sample and get advantage 0; "
            "sample at least two per group (num_return_sequences_in_group, group_size).",
            AlgorithmWarning,
            stacklevel=3,
        )


def group_advantage(scores: Tensor, groups: Groups, scale: Scale, ddof: int, eps: float) -> Tensor:
    """Return ``(S - mean_g) / (std_g + eps)``, or ``S - mean_g`` for ``scale="none"``, ``[batch]`` float64."""
    if scale not in ("std", "none"):
        raise ValueError(f"scale must be 'std' or 'none', got {scale!r}.")
    centred = scores.double() - groups.mean(scores)[groups.codes]
    if scale == "none":
        return centred
    return centred / (groups.std(scores, ddof)[groups.codes] + eps)


@torch.no_grad()
def grpo(scores: Tensor, group_ids: GroupIds, *, scale: Scale = "std", ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """Group relative policy optimization: ``A = (S - mean_g) / (std_g + eps)``.

    Args:
        scores: ``[batch]`` float, one score per sample.
        group_ids: One hashable per sample; members may be interleaved.
        scale: ``"std"``, or ``"none"`` for Dr. GRPO (the mean is subtracted, nothing is divided).
        ddof: 1 for the sample standard deviation, 0 for the population's.
        eps: Added to the standard deviation.

    Returns:
        ``[batch]`` in the dtype of ``scores``. A group of one gets 0 and an :class:`AlgorithmWarning`.

    Raises:
        ValueError: ``scale`` is unknown, or the ids do not match the scores.

    Source: Shao et al. 2024, DeepSeekMath (GRPO); Liu et al. 2025, Understanding R1-Zero-Like Training (Dr. GRPO).
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "grpo")
    return group_advantage(scores, groups, scale, ddof, eps).to(scores.dtype)


@torch.no_grad()
def rloo(scores: Tensor, group_ids: GroupIds) -> Tensor:
    """REINFORCE leave-one-out: ``A = n / (n - 1) * (S - mean_g)``, the score minus the mean of the others.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.

    Returns:
        ``[batch]``. A group of one gets 0 and an :class:`AlgorithmWarning`.

    Source: Ahmadian et al. 2024, Back to Basics; Kool et al. 2019.
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "rloo")
    size = groups.sizes()[groups.codes]
    centred = scores.double() - groups.mean(scores)[groups.codes]
    return torch.where(size > 1, centred * size / (size - 1).clamp_min(1), 0.0).to(scores.dtype)


@torch.no_grad()
def remax(scores: Tensor, baselines: Tensor) -> Tensor:
    """ReMax: ``A = S - S_greedy``, the baseline being the score of the greedy answer to the same prompt.

    Args:
        scores: ``[batch]`` float.
        baselines: ``[batch]`` float.

    Returns:
        ``[batch]``.

    Source: Li et al. 2023, ReMax.
    """
    return scores - baselines.to(scores.dtype)


@torch.no_grad()
def opo(scores: Tensor, lengths: Tensor, group_ids: GroupIds) -> Tensor:
    """On-policy RL with the optimal baseline: ``A = S - sum_g(len * S) / sum_g(len)``.

    Args:
        scores: ``[batch]`` float.
        lengths: ``[batch]``, trained tokens per sample.
        group_ids: One hashable per sample.

    Returns:
        ``[batch]``. A group without any token uses its plain mean.

    Source: Hao et al. 2025, On-Policy RL with Optimal Reward Baseline.
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "opo")
    weights = lengths.double()
    total = groups.sum(weights)
    weighted = groups.sum(weights * scores.double()) / torch.where(total > 0, total, 1.0)
    baseline = torch.where(total > 0, weighted, groups.mean(scores))
    return (scores.double() - baseline[groups.codes]).to(scores.dtype)


@torch.no_grad()
def opmd(
    scores: Tensor, group_ids: GroupIds, tau: float = 1.0, baseline: Literal["mean", "logsumexp"] = "mean"
) -> Tensor:
    """Online policy mirror descent: ``A = S - b``, ``b`` the group mean or ``tau * (logsumexp(S / tau) - log n)``.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        tau: Temperature of the regularisation, > 0; read by the baseline ``"logsumexp"`` and by the loss ``opmd``.
        baseline: Which one.

    Returns:
        ``[batch]``.

    Raises:
        ValueError: ``tau`` is not positive or ``baseline`` is unknown.

    Source: Kimi Team 2025, Kimi k1.5; Trinity-RFT's OPMD note.
    """
    if tau <= 0:
        raise ValueError(f"opmd: tau must be positive, got {tau}.")
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "opmd")
    if baseline == "mean":
        level = groups.mean(scores)
    elif baseline == "logsumexp":
        scaled = scores.double() / tau
        top = torch.full((groups.count,), -torch.inf, dtype=torch.float64, device=scores.device)
        top = top.scatter_reduce_(0, groups.codes, scaled, "amax")
        spread = groups.mean((scaled - top[groups.codes]).exp())
        level = tau * (top + spread.log())
    else:
        raise ValueError(f"opmd: baseline must be 'mean' or 'logsumexp', got {baseline!r}.")
    return (scores.double() - level[groups.codes]).to(scores.dtype)
