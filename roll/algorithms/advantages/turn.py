"""Estimators whose entries are turns (steps) of multi-turn trajectories: one advantage per turn ``[turns]``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from roll.algorithms.advantages.outcome import Scale, group_advantage, warn_groups_of_one
from roll.algorithms.groups import GroupIds, Groups, encode, refine, representatives
from roll.algorithms.scan import reverse_scan


@torch.no_grad()
def turn_returns(turn_rewards: Tensor, turn_index: Tensor, trajectories: Groups, gamma: float) -> Tensor:
    """Return ``G_k = sum_{j >= k} gamma^(j - k) * r_j`` within each trajectory, ``[turns]`` float64.

    Args:
        turn_rewards: ``[turns]`` float.
        turn_index: ``[turns]`` int, ``k >= 0``; a turn that is absent counts as reward 0.
        trajectories: The trajectory of each entry.
        gamma: Discount per turn, in [0, 1].

    Raises:
        ValueError: A turn index is negative, or a trajectory has two entries for one turn.

    Source: Williams 1992, REINFORCE.
    """
    if turn_index.numel() == 0:
        return turn_rewards.double()
    if int(turn_index.min()) < 0:
        raise ValueError("turn_index has negative entries: leave out what is not a turn.")
    width = int(turn_index.max()) + 1
    cells = trajectories.codes * width + turn_index.long()
    if torch.unique(cells).numel() != cells.numel():
        raise ValueError("a trajectory has two entries with the same turn_index: pass each turn once.")
    table = torch.zeros(trajectories.count * width, dtype=torch.float64, device=turn_rewards.device)
    table[cells] = turn_rewards.double()
    return reverse_scan(table.view(trajectories.count, width), gamma).reshape(-1)[cells]


@torch.no_grad()
def agentic_reinforce(turn_rewards: Tensor, turn_index: Tensor, trajectory_ids: GroupIds, gamma: float) -> Tensor:
    """REINFORCE by turns: ``G_k = r_k + gamma * G_(k+1)``, discounted per turn and not per token, without a baseline.

    What scores are compared with is up to their normalisation (``reward_normalization``, ``reward_norm``).

    Args:
        turn_rewards: ``[turns]`` float, what each turn earned.
        turn_index: ``[turns]`` int, the turn's number within its trajectory.
        trajectory_ids: One hashable per turn: which trajectory.
        gamma: Discount per turn, in [0, 1].

    Returns:
        ``[turns]`` in the dtype of ``turn_rewards``.

    Raises:
        ValueError: Inconsistent turns (see :func:`turn_returns`).

    Source: Williams 1992, REINFORCE; Wang et al. 2025, ROLL (``agentic_reinforce``).
    """
    trajectories = encode(trajectory_ids, turn_rewards.shape[0], device=turn_rewards.device, name="trajectory_ids")
    return turn_returns(turn_rewards, turn_index, trajectories, gamma).to(turn_rewards.dtype)


@torch.no_grad()
def step_reinforce(
    turn_rewards: Tensor,
    turn_index: Tensor,
    trajectory_ids: GroupIds,
    group_ids: GroupIds,
    gamma: float,
    baseline: Literal["group_turn", "none"] = "group_turn",
    single: Literal["group", "zero"] = "group",
) -> Tensor:
    """Credit per turn: the discounted return from the turn on, minus the group's mean return at that same turn.

    ``A_k = G_k - mean(G_k over the trajectories of the group that have a turn k)``.

    Args:
        turn_rewards: ``[turns]`` float, what each turn earned.
        turn_index: ``[turns]`` int, the turn's number within its trajectory.
        trajectory_ids: One hashable per turn: which trajectory.
        group_ids: One hashable per turn: which group of comparable trajectories.
        gamma: Discount per turn, in [0, 1].
        baseline: ``"none"`` returns ``G_k``.
        single: What to do with a turn number that only one trajectory of the group reached: ``"group"`` compares it
            with the group's mean return over all its turns, ``"zero"`` gives it advantage 0. A group of one trajectory
            gets 0 either way, with an :class:`AlgorithmWarning`.

    Returns:
        ``[turns]`` in the dtype of ``turn_rewards``.

    Raises:
        ValueError: Unknown option, or inconsistent turns (see :func:`turn_returns`).

    Source: REINFORCE (Williams 1992) with the per-turn group baseline of multi-turn GRPO variants.
    """
    if baseline not in ("group_turn", "none"):
        raise ValueError(f"step_reinforce: baseline must be 'group_turn' or 'none', got {baseline!r}.")
    if single not in ("group", "zero"):
        raise ValueError(f"step_reinforce: single must be 'group' or 'zero', got {single!r}.")
    size, device = turn_rewards.shape[0], turn_rewards.device
    trajectories = encode(trajectory_ids, size, device=device, name="trajectory_ids")
    returns = turn_returns(turn_rewards, turn_index, trajectories, gamma)
    if baseline == "none":
        return returns.to(turn_rewards.dtype)
    groups = encode(group_ids, size, device=device)
    members = representatives(groups, trajectories)
    warn_groups_of_one(members, "step_reinforce")
    at_turn = refine(groups, turn_index)
    level = at_turn.mean(returns)[at_turn.codes]
    alone = at_turn.sizes()[at_turn.codes] <= 1
    fallback = groups.mean(returns)[groups.codes] if single == "group" else returns
    only_member = members.sizes()[groups.codes] <= 1
    level = torch.where(only_member, returns, torch.where(alone, fallback, level))
    return (returns - level).to(turn_rewards.dtype)


@torch.no_grad()
def step_wise_grpo(
    scores: Tensor,
    group_ids: GroupIds,
    trajectory_ids: GroupIds,
    turn_index: Tensor,
    *,
    scale: Scale = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    divide_by_steps: bool = False,
) -> Tensor:
    """Step-wise GRPO: the group advantage of a trajectory's last step, given to all steps of the trajectory.

    Args:
        scores: ``[turns]`` float; only the last step's score of each trajectory is read.
        group_ids: One hashable per turn.
        trajectory_ids: One hashable per turn.
        turn_index: ``[turns]`` int, the order of the steps.
        scale: As in :func:`grpo`.
        ddof: As in :func:`grpo`.
        eps: As in :func:`grpo`.
        divide_by_steps: Divide by the number of steps, so that long trajectories do not weigh more.

    Returns:
        ``[turns]``. A group of one trajectory gets 0 and an :class:`AlgorithmWarning`.

    Source: Pan et al. 2025, Trinity-RFT (step-wise GRPO for general multi-step workflows).
    """
    size, device = scores.shape[0], scores.device
    groups = encode(group_ids, size, device=device)
    trajectories = encode(trajectory_ids, size, device=device, name="trajectory_ids")
    final = torch.full((trajectories.count,), -1, dtype=torch.int64, device=device)
    final.scatter_reduce_(0, trajectories.codes, turn_index.long(), "amax")
    is_last = (turn_index == final[trajectories.codes]).double()
    last_score = trajectories.sum(scores.double() * is_last)
    members = representatives(groups, trajectories)
    warn_groups_of_one(members, "step_wise_grpo")
    advantages = group_advantage(last_score, members, scale, ddof, eps)
    if divide_by_steps:
        advantages = advantages / trajectories.sizes()
    return advantages[trajectories.codes].to(scores.dtype)


@torch.no_grad()
def gigpo(
    turn_rewards: Tensor,
    turn_index: Tensor,
    trajectory_ids: GroupIds,
    group_ids: GroupIds,
    state_hash: GroupIds,
    *,
    scores: Tensor | None = None,
    step_reward_weight: float = 1.0,
    step_reward_gamma: float = 0.95,
    scale: Scale = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """Group-in-group policy optimization: credit for the episode plus credit for the step.

    ``A = grpo(episode score within the group) + step_reward_weight * grpo(step return among the steps of the group that
    started from the same state)``; step returns are discounted by ``step_reward_gamma``.

    Args:
        turn_rewards: ``[turns]`` float.
        turn_index: ``[turns]`` int.
        trajectory_ids: One hashable per turn.
        group_ids: One hashable per turn.
        state_hash: One hashable per turn: the state before the action. A state seen once gives step credit 0.
        scores: ``[turns]`` float, the episode's score repeated on its turns; without it the sum of its turn rewards.
        step_reward_weight: Weight of the step term.
        step_reward_gamma: Discount per turn, in [0, 1].
        scale: As in :func:`grpo`, for both terms.
        ddof: As in :func:`grpo`.
        eps: As in :func:`grpo`.

    Returns:
        ``[turns]``.

    Source: Feng et al. 2025, Group-in-Group Policy Optimization.
    """
    size, device = turn_rewards.shape[0], turn_rewards.device
    groups = encode(group_ids, size, device=device)
    trajectories = encode(trajectory_ids, size, device=device, name="trajectory_ids")
    members = representatives(groups, trajectories)
    warn_groups_of_one(members, "gigpo")
    episode = trajectories.sum(turn_rewards) if scores is None else trajectories.mean(scores)
    episode_term = group_advantage(episode, members, scale, ddof, eps)[trajectories.codes]
    returns = turn_returns(turn_rewards, turn_index, trajectories, step_reward_gamma)
    states = encode(state_hash, size, device=device, name="state_hash")
    step_term = group_advantage(returns, refine(groups, states.codes), scale, ddof, eps)
    return (episode_term + step_reward_weight * step_term).to(turn_rewards.dtype)
