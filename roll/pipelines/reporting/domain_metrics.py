"""Numbers that describe graded responses: per tag and domain, mean@n and pass@k."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import comb
from statistics import fmean

from roll.pipelines.reporting.metrics import rollout_metrics
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the probability that one of ``k`` responses is correct, without bias: ``1 - C(n-c, k) / C(n, k)``.

    Args:
        samples: Responses n to the prompt, at least k.
        correct: How many of them (c) are correct.
        k: Responses one may look at.

    Raises:
        ValueError: If ``k`` exceeds ``samples``.

    Source: Chen et al. 2021, Evaluating Large Language Models Trained on Code.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} responses per prompt, got {samples}")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def evaluation_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Describe an evaluation as a whole and per tag.

    Returns:
        What :func:`roll.pipelines.reporting.metrics.rollout_metrics` says, and where prompts were answered ``mean@n``
        and ``pass@k`` (k = 1, 2, 4, … n) of all of them and of every tag (``<tag>/mean@8``), where n is the number of
        responses per prompt.
        Responses that could not be graded count in ``errors``; mean and pass leave the prompts of those out.
    """
    answers = [group for group in groups if group.is_answers]
    metrics = {**rollout_metrics(groups), **_accuracies(answers)}
    by_tag: dict[str, list[TrajectoryGroup]] = defaultdict(list)
    for group in answers:
        by_tag[group.tag].append(group)
    for tag, members in by_tag.items():
        metrics |= {f"{tag}/{name}": value for name, value in _accuracies(members).items()}
        metrics[f"{tag}/success"] = _mean_success(members)
    return metrics


def domain_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Describe groups per domain, where there are others too: share, score, success, length, share cut off.

    Episodes of environments count in the shares.
    """
    by_domain: dict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        by_domain[group.domain] += [t for t in group.trajectories if not t.status.is_error]
    if len(by_domain) < 2:
        return {}
    metrics: dict[str, float] = {}
    for domain, members in by_domain.items():
        if not domain:
            continue
        metrics[f"{domain}/share"] = len(members) / sum(map(len, by_domain.values()))
        if members:
            graded = [(t.score, t.success) for t in members if t.score is not None]
            if graded:
                metrics[f"{domain}/score"] = fmean(score for score, _ in graded)
                metrics[f"{domain}/correct"] = fmean(success for _, success in graded)
            metrics |= {
                f"{domain}/response_tokens": fmean(t.completion_tokens for t in members),
                f"{domain}/truncated": fmean(t.status is Status.TRUNCATED_LENGTH for t in members),
            }
    return metrics


def _accuracies(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    counts = [_counts(group) for group in groups]
    counts = [(samples, correct) for samples, correct in counts if samples]
    if not counts:
        return {}
    most = max(samples for samples, _ in counts)
    counts = [(samples, correct) for samples, correct in counts if samples == most]
    metrics = {f"mean@{most}": fmean(correct / samples for samples, correct in counts)}
    sizes = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    for k in sizes:
        metrics[f"pass@{k}"] = fmean(pass_at_k(samples, correct, k) for samples, correct in counts)
    return metrics


def _counts(group: TrajectoryGroup) -> tuple[int, int]:
    graded = [member for member in group.trajectories if not member.status.is_error]
    return len(graded), sum(member.success for member in graded)


def _mean_success(groups: Iterable[TrajectoryGroup]) -> float:
    counts = [_counts(group) for group in groups]
    total = sum(samples for samples, _ in counts)
    return sum(correct for _, correct in counts) / total if total else 0.0
