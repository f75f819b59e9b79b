"""Estimators along the tokens ``[batch, sequence]``: what follows a token decides its advantage.

Everywhere: only tokens of the mask exist. Prompt, observation and padding tokens are skipped, so a reward after an
observation reaches the tokens before it, and nothing is bootstrapped from a value under a zero mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roll.algorithms.groups import GroupIds, encode, representatives
from roll.algorithms.masking import Blanking, broadcast, masked_whiten, slabs
from roll.algorithms.scan import sums_after


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the masked tokens.

    ``delta = r + gamma * V_next - v`` and ``A = delta + gamma * lam * A_next``, where "next" is the next token of the
    mask and both are 0 after the last one; ``returns = A + v``. Whitening is separate.

    Args:
        rewards: ``[batch, sequence]`` float.
        values: ``[batch, sequence]`` float, the critic's value before each token.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        gamma: Discount in [0, 1].
        lam: GAE lambda in [0, 1].

    Returns:
        ``(advantages, returns)``, each ``[batch, sequence]``, 0 outside the mask.

    Source: Schulman et al. 2016, High-Dimensional Continuous Control Using GAE.
    """
    advantages, returns = torch.empty_like(values), torch.empty_like(values)
    for rows in slabs(mask):
        value, reward, within = values[rows], rewards[rows].to(values.dtype), Blanking(mask[rows])
        # A + v = r + gamma * (v' + lam * (r' - v') + lam * gamma * (...'')), where ' is the next token of the mask.
        later = sums_after(torch.lerp(value, reward, lam), within, gamma * lam)
        following = torch.add(reward, later, alpha=gamma)
        within.into(advantages[rows], following - value)
        within.into(returns[rows], following)
    return advantages, returns


@torch.no_grad()
def reinforce(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Discounted return of each token: ``G = r + gamma * G_next`` over the masked tokens.

    Args:
        rewards: ``[batch, sequence]`` float.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        gamma: Discount in [0, 1].

    Returns:
        ``[batch, sequence]``, 0 outside the mask.

    Source: Williams 1992, REINFORCE.
    """
    returns = torch.empty_like(rewards)
    for rows in slabs(mask):
        within = Blanking(mask[rows])
        later = sums_after(rewards[rows], within, gamma)
        within.into(returns[rows], torch.add(rewards[rows], later, alpha=gamma))
    return returns


@torch.no_grad()
def reinforce_plus_plus(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """REINFORCE++: the masked discounted return, whitened over the trained tokens of the whole batch.

    Args:
        rewards: ``[batch, sequence]`` float.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        gamma: Discount in [0, 1].

    Returns:
        ``[batch, sequence]``, 0 outside the mask.

    Source: Hu 2025, REINFORCE++.
    """
    return masked_whiten(reinforce(rewards, mask, gamma), mask)


@torch.no_grad()
def reinforce_plus_plus_baseline(
    scores: Tensor, group_ids: GroupIds, mask: Tensor, trajectory_ids: GroupIds | None = None
) -> Tensor:
    """REINFORCE++ with a group baseline: ``whiten((S - mean_g) * m) * m``.

    Args:
        scores: ``[batch]`` float.
        group_ids: One hashable per sample.
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        trajectory_ids: One hashable per sample: samples that share one are pieces of a trajectory, which counts once in
            the group's mean. Without it every sample is its own.

    Returns:
        ``[batch, sequence]``, 0 outside the mask.

    Source: Hu 2025, REINFORCE++ (baseline variant).
    """
    groups = encode(group_ids, scores.shape[0], device=scores.device)
    if trajectory_ids is None:
        mean = groups.mean(scores)
    else:
        trajectories = encode(trajectory_ids, scores.shape[0], device=scores.device, name="trajectory_ids")
        mean = representatives(groups, trajectories).mean(trajectories.mean(scores))
    centred = (scores.double() - mean[groups.codes]).to(scores.dtype)
    return masked_whiten(broadcast(centred, mask), mask)
