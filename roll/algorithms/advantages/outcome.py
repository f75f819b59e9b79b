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
    """Return ``(S - mean_g) / (std_g + eps)``, or ``S - mean_g`` for ``scale="none"``, ``[batch]`` float64.

    Raises:
        ValueError: ``scale`` is unknown.

    Source: Shao et al. 2024, DeepSeekMath (GRPO); Liu et al. 2025, Understanding R1-Zero-Like Training (Dr. GRPO).
    """
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

    Source: Ahmadian et al. 2024, Back to Basics; Kool et al. 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free!
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
def grpo_passk(
    scores: Tensor, group_ids: GroupIds, *, scale: Scale = "std", ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """GRPO for the best of a group: ``A = (S_first - S_second) / (std_g + eps)`` for the best member, 0 for all others.

    It rewards that one of k answers succeeds (pass@k), not that all do. Where the two best scores are equal, so that
    the group has no single best, every advantage is 0.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        scale: As in :func:`grpo`.
        ddof: As in :func:`grpo`.
        eps: As in :func:`grpo`.

    Returns:
        ``[batch]``. A group of one gets 0 and an :class:`AlgorithmWarning`.

    Raises:
        ValueError: ``scale`` is unknown, or the ids do not match the scores.

    Source: Tang et al. 2025, Optimizing Language Models for Inference Time Objectives using Reinforcement Learning;
    verl.
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "grpo_passk")
    values = scores.double()
    first = groups.max(values)
    is_first = values == first[groups.codes]
    second = groups.max(torch.where(is_first, -torch.inf, values))
    alone = groups.sum(is_first.double()) == 1
    # Without a second, the group has one member or all its scores are equal.
    margin = torch.where(alone & second.isfinite(), first - second, 0.0)
    if scale == "std":
        margin = margin / (groups.std(scores, ddof) + eps)
    elif scale != "none":
        raise ValueError(f"scale must be 'std' or 'none', got {scale!r}.")
    return torch.where(is_first, margin[groups.codes], 0.0).to(scores.dtype)


@torch.no_grad()
def gpg(scores: Tensor, group_ids: GroupIds, *, f_norm: float = 1.0) -> Tensor:
    """Group policy gradient: ``A = n / n_scored * (S - mean_g) / f_norm``; of n samples n_scored have a score but 0.

    The factor makes up for the samples of a batch that earned nothing. Pair it with the loss ``vanilla``.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        f_norm: Divisor of all advantages, > 0.

    Returns:
        ``[batch]``. A group of one gets 0 and an :class:`AlgorithmWarning`.

    Raises:
        ValueError: ``f_norm`` is not positive.

    Source: Chu et al. 2025, GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning; verl.
    """
    if f_norm <= 0:
        raise ValueError(f"gpg: f_norm must be positive, got {f_norm}.")
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "gpg")
    scored = int((scores != 0).sum())
    centred = scores.double() - groups.mean(scores)[groups.codes]
    return (centred * (scores.shape[0] / max(scored, 1)) / f_norm).to(scores.dtype)


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

    Source: Kimi Team 2025, Kimi k1.5; Pan et al. 2025, Trinity-RFT (its note on OPMD).
    """
    if tau <= 0:
        raise ValueError(f"opmd: tau must be positive, got {tau}.")
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "opmd")
    if baseline == "mean":
        level = groups.mean(scores)
    elif baseline == "logsumexp":
        scaled = scores.double() / tau
        top = groups.max(scaled)
        spread = groups.mean((scaled - top[groups.codes]).exp())
        level = tau * (top + spread.log())
    else:
        raise ValueError(f"opmd: baseline must be 'mean' or 'logsumexp', got {baseline!r}.")
    return (scores.double() - level[groups.codes]).to(scores.dtype)


@torch.no_grad()
def asymre(scores: Tensor, group_ids: GroupIds, baseline_shift: float = -0.1) -> Tensor:
    """Asymmetric REINFORCE: ``A = S - (mean_g + baseline_shift)``.

    A baseline below the mean, as samples of an older policy need it, weighs what succeeded more than what failed.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        baseline_shift: The paper's delta V; below 0 for samples of another policy than the one that is trained.

    Returns:
        ``[batch]``. A group of one gets 0 and an :class:`AlgorithmWarning`.

    Source: Arnal et al. 2025, Asymmetric REINFORCE for off-Policy Reinforcement Learning; Trinity-RFT.
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "asymre")
    centred = scores.double() - groups.mean(scores)[groups.codes] - baseline_shift
    return torch.where(groups.sizes()[groups.codes] > 1, centred, 0.0).to(scores.dtype)


@torch.no_grad()
def rec(
    scores: Tensor,
    group_ids: GroupIds,
    *,
    drop: Literal["none", "balance"] = "none",
    scale: Scale = "none",
    eps: float = 1e-6,
) -> Tensor:
    """:func:`grpo` among the members that are kept, 0 for the others: ``A = (S - mean_kept) / (std_kept + eps)``.

    ``drop="balance"`` keeps of the members below the mean at most as many as are not: where most of a group failed, the
    failures do not outweigh what succeeded. Members are drawn alike, so that the last ones can go; no chance is needed.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        drop: Which members are left out.
        scale: ``"none"``, or ``"std"`` to divide by the deviation of the kept ones, the population's.
        eps: Added to the deviation.

    Returns:
        ``[batch]``. A group of one gets 0 and an :class:`AlgorithmWarning`.

    Raises:
        ValueError: ``drop`` or ``scale`` is unknown.

    Source: Yao et al. 2025, Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm (RED-Drop); Trinity-RFT.
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    warn_groups_of_one(groups, "rec")
    if drop not in ("none", "balance"):
        raise ValueError(f"rec: drop must be 'none' or 'balance', got {drop!r}.")
    kept = _balanced(scores, groups) if drop == "balance" else torch.ones_like(scores, dtype=torch.bool)
    known = encode(groups.codes[kept], int(kept.sum()), device=scores.device)
    advantages = torch.zeros(scores.shape[0], dtype=torch.float64, device=scores.device)
    advantages[kept] = group_advantage(scores[kept], known, scale, 0, eps)
    return advantages.to(scores.dtype)


def _balanced(scores: Tensor, groups: Groups) -> Tensor:
    """Return ``[batch]`` bool: all but the last members below a group's mean that outnumber those not below it."""
    failed = scores.double() < groups.mean(scores)[groups.codes]
    members = torch.nn.functional.one_hot(groups.codes, groups.count) * failed.unsqueeze(1)
    place = members.cumsum(0).gather(1, groups.codes.unsqueeze(1)).squeeze(1)
    return ~failed | (place <= groups.sum(~failed)[groups.codes])
