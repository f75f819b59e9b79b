"""Numbers that describe a rollout, computed the same way for training and evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from tensordict import TensorDict

from roll.trajectories.model import Status, Trajectory, TrajectoryGroup


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Describe the trajectories of one rollout.

    Returns:
        ``success``, ``reward`` (mean episode score), ``reward_std``, ``turns``, ``response_tokens`` and
        ``prompt_tokens`` per episode, ``zero_variance_groups`` (share of groups whose scores are all equal),
        ``status/<status>`` (share of episodes), ``errors`` (count), ``env/<metric>`` for what environments report, and
        success and reward per tag when there are several tags.
    """
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [trajectory for trajectory in everything if not trajectory.status.is_error]
    metrics = {f"status/{status}": 0.0 for status in Status if status is not Status.RUNNING}
    for trajectory in everything:
        metrics[f"status/{trajectory.status}"] += 1 / len(everything)
    metrics["errors"] = float(len(everything) - len(scored))
    if not scored:
        return metrics
    metrics |= _averages(scored)
    groups_with_scores = [[t.score or 0.0 for t in g.trajectories if not t.status.is_error] for g in groups]
    comparable = [scores for scores in groups_with_scores if len(scores) > 1]
    if comparable:
        metrics["zero_variance_groups"] = fmean(max(scores) == min(scores) for scores in comparable)
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in scored:
        by_tag[trajectory.tag].append(trajectory)
    if len(by_tag) > 1:
        for tag, members in by_tag.items():
            metrics[f"{tag}/success"] = fmean(t.success for t in members)
            metrics[f"{tag}/reward"] = fmean(t.score or 0.0 for t in members)
    return metrics


def _averages(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    scores = [t.score or 0.0 for t in trajectories]
    reported: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            reported[name].append(value)
    return {
        "success": fmean(t.success for t in trajectories),
        "reward": fmean(scores),
        "reward_std": pstdev(scores),
        "turns": fmean(len(t.turns) for t in trajectories),
        "response_tokens": fmean(t.completion_tokens for t in trajectories),
        "prompt_tokens": fmean(t.total_tokens - t.completion_tokens for t in trajectories),
        **{f"env/{name}": fmean(values) for name, values in reported.items()},
    }


def sampler_mismatch(batch: TensorDict) -> dict[str, float]:
    """Compare the trainer's log-probs with the sampler's on response tokens (0 when both compute the same numbers)."""
    mask = batch["response_mask"]
    difference = (batch["old_log_probs"] - batch["sampler_log_probs"])[mask]
    if difference.numel() == 0:
        return {}
    ratio = difference.clamp(-20, 20).exp()
    return {
        "sampler/log_prob_difference_max": float(difference.abs().max()),
        "sampler/log_prob_difference_mean": float(difference.abs().mean()),
        "sampler/kl": float((ratio - 1 - difference).mean()),
    }


def prefixed(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    """Return ``metrics`` with ``prefix/`` before every name."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def batch_metrics(batch: TensorDict) -> dict[str, float]:
    """Describe the shape of a training batch."""
    lengths = batch["lengths"]
    return {
        "batch/samples": float(len(batch)),
        "batch/tokens": float(lengths.sum()),
        "batch/response_tokens": float(torch.count_nonzero(batch["response_mask"])),
        "batch/longest": float(lengths.max()),
    }
