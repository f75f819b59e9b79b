"""Numbers that describe a rollout, computed the same way for training and evaluation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from tensordict import TensorDict

from roll.trajectories.model import Status, Trajectory, TrajectoryGroup


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Describe the trajectories of one rollout.

    Returns:
        ``success``, ``reward`` (mean episode score) and ``reward_std`` where there are scores; ``turns``,
        ``response_tokens`` and ``prompt_tokens`` per episode, ``zero_variance_groups`` (share of groups whose scores
        are all equal), ``status/<status>`` (share of episodes), ``errors`` and ``retries`` (counts), ``env/<metric>``
        and ``verifier/<metric>`` for what environments and verifiers report, and success and reward per tag when there
        are several tags, and per seat of games that have some (``seat/<seat>/success``).
    """
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [trajectory for trajectory in everything if not trajectory.status.is_error]
    metrics = {f"status/{status}": 0.0 for status in Status if status is not Status.RUNNING}
    for status, count in Counter(trajectory.status for trajectory in everything).items():
        metrics[f"status/{status}"] = count / len(everything)
    metrics["errors"] = float(len(everything) - len(scored))
    metrics["retries"] = float(sum(trajectory.retries for trajectory in everything))
    if not scored:
        return metrics
    metrics |= {**_averages(scored), **_reported(groups)}
    groups_with_scores = [
        [t.score for t in g.trajectories if not t.status.is_error and t.score is not None] for g in groups
    ]
    comparable = [scores for scores in groups_with_scores if len(scores) > 1]
    if comparable:
        metrics["zero_variance_groups"] = fmean(max(scores) == min(scores) for scores in comparable)
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in scored:
        if trajectory.score is not None:
            by_tag[trajectory.tag].append(trajectory)
    by_seat: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in scored:
        if trajectory.score is not None and trajectory.seat:
            by_seat[f"seat/{trajectory.seat}"].append(trajectory)
    kinds = {**(by_tag if len(by_tag) > 1 else {}), **dict(sorted(by_seat.items()))}
    for kind, members in kinds.items():
        metrics[f"{kind}/success"] = fmean(t.success for t in members)
        metrics[f"{kind}/reward"] = fmean(t.score or 0.0 for t in members)
    return metrics


def _averages(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    scores = [t.score for t in trajectories if t.score is not None]
    graded = (
        {}
        if not scores
        else {
            "success": fmean(t.success for t in trajectories if t.score is not None),
            "reward": fmean(scores),
            "reward_std": pstdev(scores),
        }
    )
    return {
        **graded,
        "turns": fmean(len(t.turns) for t in trajectories),
        "response_tokens": fmean(t.completion_tokens for t in trajectories),
        "prompt_tokens": fmean(t.total_tokens - t.completion_tokens for t in trajectories),
    }


def success_in_environments(groups: Sequence[TrajectoryGroup]) -> float | None:
    """Return the share of episodes that succeeded, without responses to prompts; ``None`` where no such group is."""
    played = [group for group in groups if not group.is_answers]
    scored = [t.success for group in played for t in group.trajectories if not t.status.is_error]
    return None if not played else fmean(scored) if scored else 0.0


def _reported(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Average what environments or verifiers reported; failures (``…/error``) over trajectories that broke too."""
    reported: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        reporter = "verifier" if group.is_answers else "env"
        for trajectory in group.trajectories:
            for name, value in trajectory.metrics.items():
                if name.endswith("/error") or not trajectory.status.is_error:
                    reported[f"{reporter}/{name}"].append(value)
    return {name: fmean(values) for name, values in reported.items()}


@dataclass
class Throughput:
    """Tokens and seconds of the rollouts of a step."""

    processed: int = 0
    sampled: int = 0
    seconds: float = 0.0

    def add(self, groups: Sequence[TrajectoryGroup], sampled: int, seconds: float) -> None:
        """Count a rollout: the trajectories it gave, the tokens it sampled, the time it took."""
        self.processed += sum(trajectory.total_tokens for group in groups for trajectory in group.trajectories)
        self.sampled += sampled
        self.seconds += seconds

    def report(self) -> dict[str, float]:
        """Return tokens per second: all tokens of the trajectories (what training processes), and sampled ones."""
        return {
            "throughput/tokens_per_second": self.processed / self.seconds,
            "throughput/sampled_tokens_per_second": self.sampled / self.seconds,
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


def generation_metrics(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge what the schedulers of requests report, one per process that asks the engines.

    Counts and throughput add up, averages are weighted by requests, of extremes the largest counts, and of
    ``replicas_up`` the smallest.

    Args:
        reports: Of :meth:`roll.schedulers.generation.GenerationScheduler.metrics`.

    Returns:
        The same names under ``generation/``.
    """
    merged: dict[str, float] = {}
    for report in reports:
        for name, value in report.items():
            if name not in merged:
                merged[name] = value * report["requests"] if name in _AVERAGES else value
            elif name in _EXTREMES:
                merged[name] = _EXTREMES[name](merged[name], value)
            else:
                merged[name] += value * report["requests"] if name in _AVERAGES else value
    total = max(merged.get("requests", 0.0), 1.0)
    for name in _AVERAGES & merged.keys():
        merged[name] /= total
    return prefixed(merged, "generation")


_EXTREMES: Mapping[str, Callable[[float, float], float]] = {"replicas_up": min, "latency_max": max}
_AVERAGES = frozenset({"prefix_cache_hit_rate", "latency_mean", "latency_p50", "latency_p95", "wait_mean"})
