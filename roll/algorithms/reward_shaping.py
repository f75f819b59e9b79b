"""Rewards before they become advantages: normalisation, shaping, and their place among the tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from roll.algorithms.groups import GroupIds, Groups, encode
from roll.algorithms.masking import as_bool, by_slabs, masked_whiten

Grouping = Literal["state", "traj_group_id", "inductive", "tags", "batch"]
Method = Literal["identity", "mean", "mean_std", "asym_clip"]

_METHODS = ("identity", "mean", "mean_std", "asym_clip")
_STD_FLOOR = 1e-6
_ASYMMETRIC_RANGE = (-1.0, 3.0)


@torch.no_grad()
def normalize(
    scores: Tensor,
    group_ids: GroupIds | None = None,
    tags: GroupIds | None = None,
    *,
    grouping: str = "batch",
    method: str = "identity",
    ddof: int = 1,
) -> Tensor:
    """Normalise scores among comparable samples (``reward_normalization`` of the agentic pipeline).

    Methods: ``identity``; ``mean``: ``x - mean``; ``mean_std``: ``(x - mean) / (std + 1e-6)``, zeros where
    ``std < 1e-6``; ``asym_clip``: ``mean_std`` clamped to [-1, 3].

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample; read by ``grouping="state"``.
        tags: One environment tag per sample; read by ``grouping="inductive"``.
        grouping: ``state`` (alias ``traj_group_id``): same group; ``inductive`` (alias ``tags``): same tag; ``batch``.
        method: One of the names above.
        ddof: 1 for the sample standard deviation, 0 for the population's.

    Returns:
        ``[batch]`` in the dtype of ``scores``.

    Raises:
        ValueError: ``grouping`` or ``method`` is unknown, or the ids that ``grouping`` needs are missing.

    Source: ROLL configuration guide; RAGEN (Wang et al. 2025) for the asymmetric clip.
    """
    if method not in _METHODS:
        raise ValueError(f"reward_normalization.method: unknown {method!r}; known: {', '.join(_METHODS)}.")
    groups = _grouped(scores, group_ids, tags, grouping)
    if method == "identity":
        return scores.clone()
    centred = scores.double() - groups.mean(scores)[groups.codes]
    if method != "mean":
        std = groups.std(scores, ddof)[groups.codes]
        centred = torch.where(std < _STD_FLOOR, 0.0, centred / (std + _STD_FLOOR))
    if method == "asym_clip":
        centred = centred.clamp(*_ASYMMETRIC_RANGE)
    return centred.to(scores.dtype)


def _grouped(scores: Tensor, group_ids: GroupIds | None, tags: GroupIds | None, grouping: str) -> Groups:
    """Return the groups that ``grouping`` compares."""
    if grouping == "batch":
        return encode([0] * scores.shape[0], scores.shape[0], device=scores.device)
    if grouping in ("state", "traj_group_id"):
        ids, name = group_ids, "group_ids"
    elif grouping in ("inductive", "tags"):
        ids, name = tags, "tags"
    else:
        known = "state (traj_group_id), inductive (tags), batch"
        raise ValueError(f"reward_normalization.grouping: unknown {grouping!r}; known: {known}.")
    if ids is None:
        raise ValueError(f"reward_normalization.grouping={grouping} needs {name}, none given.")
    return encode(ids, scores.shape[0], device=scores.device, name=name)


@dataclass
class RunningMoments:
    """Mean and variance over all scores ever seen (Welford, merged per batch). Belongs into the checkpoint.

    Attributes:
        count: Scores seen.
        mean: Their mean.
        m2: Their summed squared deviation from the mean.

    Source: Chan, Golub and LeVeque 1979, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @property
    def std(self) -> float:
        """Sample standard deviation; 0 before two scores were seen."""
        return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else 0.0

    def update(self, scores: Tensor) -> None:
        """Add the scores of a batch ``[batch]``."""
        size = scores.numel()
        if size == 0:
            return
        values = scores.detach().double()
        batch_mean = float(values.mean())
        batch_m2 = float((values - batch_mean).square().sum())
        total = self.count + size
        shift = batch_mean - self.mean
        self.mean += shift * size / total
        self.m2 += batch_m2 + shift * shift * self.count * size / total
        self.count = total

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint must hold."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore :meth:`state_dict`."""
        self.count, self.mean, self.m2 = int(state["count"]), float(state["mean"]), float(state["m2"])


@torch.no_grad()
def shape_scores(
    scores: Tensor,
    group_ids: GroupIds | None = None,
    *,
    reward_norm: Literal["batch", "group", "running"] | None = None,
    reward_shift: bool = False,
    reward_scale: bool = False,
    use_reward_scaling: bool = False,
    use_reward_norm: bool = False,
    reward_clip: float | None = None,
    running: RunningMoments | None = None,
) -> Tensor:
    """Clip and normalise scores as the RLVR pipeline's keys say: first ``reward_clip``, then the normalisation.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample; needed by ``reward_norm="group"``.
        reward_norm: Whose mean and standard deviation: ``batch``, ``group``, ``running`` (all scores so far, this batch
            included), or ``None`` for no normalisation.
        reward_shift: Subtract the mean only.
        reward_scale: Divide by the standard deviation only.
        use_reward_scaling: Short for ``reward_norm="running"`` with ``reward_scale``; read where ``reward_norm`` is
            ``None``.
        use_reward_norm: With ``use_reward_scaling``: subtract the running mean too.
        reward_clip: Clamp scores to +- this first.
        running: The running moments, updated by this call; needed by ``running``.

    Returns:
        ``[batch]``. Without variance nothing is divided.

    Raises:
        ValueError: Contradicting keys, or a missing input.

    Source: ROLL configuration guide, "PPO reward/advantage" section.
    """
    if reward_shift and reward_scale:
        raise ValueError(
            "reward_shift (mean only) and reward_scale (std only) exclude each other: unset both for mean and std."
        )
    if reward_clip is not None:
        if reward_clip <= 0:
            raise ValueError(f"reward_clip must be positive, got {reward_clip}.")
        scores = scores.clamp(-reward_clip, reward_clip)
    if reward_norm is None and use_reward_scaling:
        reward_norm, reward_shift, reward_scale = "running", False, not use_reward_norm
    if reward_norm is None:
        return scores.clone()
    mean, std = _moments(scores, group_ids, reward_norm, running)
    values = scores.double()
    if not reward_scale:
        values = values - mean
    if not reward_shift:
        values = torch.where(std < _STD_FLOOR, values, values / (std + _STD_FLOOR))
    return values.to(scores.dtype)


def _moments(
    scores: Tensor, group_ids: GroupIds | None, reward_norm: str, running: RunningMoments | None
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation for each sample, ``[batch]`` float64."""
    if reward_norm == "running":
        if running is None:
            raise ValueError("reward_norm=running needs the RunningMoments of the run.")
        running.update(scores)
        return torch.full_like(scores, running.mean, dtype=torch.float64), torch.full_like(
            scores, running.std, dtype=torch.float64
        )
    if reward_norm not in ("batch", "group"):
        raise ValueError(f"reward_norm: unknown {reward_norm!r}; known: batch, group, running, null.")
    groups = _grouped(scores, group_ids, None, "state" if reward_norm == "group" else "batch")
    return groups.mean(scores)[groups.codes], groups.std(scores)[groups.codes]


@torch.no_grad()
def whiten_rewards(token_rewards: Tensor, mask: Tensor) -> Tensor:
    """Whiten token rewards ``[batch, sequence]`` to mean 0 and variance 1 over the mask (``whiten_rewards``).

    Source: ROLL configuration guide.
    """
    return masked_whiten(token_rewards, mask)


@torch.no_grad()
def place_on_last_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Return token rewards ``[batch, sequence]`` with each score ``[batch]`` on the last trained token of its row.

    Source: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences.
    """
    inside = as_bool(mask)
    rewards = torch.zeros(inside.shape, dtype=scores.dtype, device=scores.device)
    positions = torch.arange(inside.shape[1], device=inside.device)
    last = by_slabs(lambda block: torch.where(block, positions, -1).amax(1), inside)
    rows = (last >= 0).nonzero().squeeze(1)
    rewards[rows, last[rows]] = scores[rows]
    return rewards


@torch.no_grad()
def overlong_penalty(lengths: Tensor, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """Soft punishment of answers near the limit: ``min(-min(len - (max - buffer), buffer) / buffer * factor, 0)``.

    Args:
        lengths: ``[batch]``, response tokens.
        max_length: Longest response.
        buffer: Tokens before the limit over which the penalty grows from 0 to ``-factor``; > 0.
        factor: Penalty at the limit.

    Returns:
        ``[batch]`` float, in [-factor, 0].

    Raises:
        ValueError: ``buffer`` is not in (0, max_length].

    Source: Yu et al. 2025, DAPO (overlong reward shaping).
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"overlong buffer must lie in (0, max_length={max_length}], got {buffer}.")
    excess = (lengths.double() - (max_length - buffer)).clamp_max(buffer)
    return (-excess / buffer * factor).clamp_max(0.0).float()


@torch.no_grad()
def length_reward(lengths: Tensor, correct: Tensor, group_ids: GroupIds) -> Tensor:
    """Prefer short right answers (``add_len_reward``): ``0.5 - (len - min_g) / (max_g - min_g)``, at most 0 if wrong.

    Args:
        lengths: ``[batch]``, response tokens.
        correct: ``[batch]`` bool.
        group_ids: One hashable per sample.

    Returns:
        ``[batch]`` float in [-0.5, 0.5]; 0 in groups whose answers are equally long.

    Source: Kimi Team 2025, Kimi k1.5 (length penalty).
    """
    groups = encode(group_ids, lengths.shape[0], device=lengths.device)
    values = lengths.double()
    shortest = torch.full((groups.count,), torch.inf, dtype=torch.float64, device=lengths.device)
    shortest = shortest.scatter_reduce_(0, groups.codes, values, "amin")[groups.codes]
    longest = torch.full((groups.count,), -torch.inf, dtype=torch.float64, device=lengths.device)
    longest = longest.scatter_reduce_(0, groups.codes, values, "amax")[groups.codes]
    span = longest - shortest
    reward = torch.where(span > 0, 0.5 - (values - shortest) / span.clamp_min(1e-12), 0.0)
    return torch.where(as_bool(correct), reward, reward.clamp_max(0.0)).float()


@torch.no_grad()
def sample_weights(*, difficulty: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """Weights of the samples in the loss, with mean 1 over the batch (compute them before any split of it).

    ``difficulty_loss_weight``: 0.5 for the easiest of the batch to 1.5 for the hardest; ``length_loss_weight``: 1.5 for
    the shortest to 0.5 for the longest; with both, their product.

    Args:
        difficulty: ``[batch]`` float, larger is harder.
        lengths: ``[batch]``, trained tokens.

    Returns:
        ``[batch]`` float.

    Raises:
        ValueError: Neither is given.

    Source: Wang et al. 2025, ROLL (sample weights of the RLVR actor).
    """
    weights: Tensor | None = None
    for values, sign in ((difficulty, 1.0), (lengths, -1.0)):
        if values is None:
            continue
        factor = 1.0 + sign * (_unit_range(values) - 0.5)
        weights = factor if weights is None else weights * factor
    if weights is None:
        raise ValueError("sample_weights needs difficulty, lengths, or both.")
    return (weights / weights.mean()).float()


def _unit_range(values: Tensor) -> Tensor:
    """Map ``[batch]`` linearly to [0, 1]; 0.5 everywhere where all are equal."""
    values = values.double()
    if values.numel() == 0:
        return values
    low, high = values.min(), values.max()
    return torch.where(high > low, (values - low) / (high - low).clamp_min(1e-12), 0.5)
