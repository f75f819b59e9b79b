"""Operators on groups of trajectories that were sampled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from roll.operators.registry import Registered
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.scores import change_score


def keep_scores(
    groups: Sequence[TrajectoryGroup], *, least: float | None = None, most: float | None = None
) -> list[TrajectoryGroup]:
    """Keep groups whose mean score is within bounds."""
    return _within(groups, MEASURES["score"], least, most)


def keep_spread(
    groups: Sequence[TrajectoryGroup], *, least: float | None = None, most: float | None = None
) -> list[TrajectoryGroup]:
    """Keep groups of whose scores the greatest is so far from the smallest."""
    return _within(groups, MEASURES["spread"], least, most)


def keep_success(
    groups: Sequence[TrajectoryGroup], *, least: float | None = None, most: float | None = None
) -> list[TrajectoryGroup]:
    """Keep groups of whose members such a share succeeded."""
    return _within(groups, MEASURES["success"], least, most)


def keep_tokens(
    groups: Sequence[TrajectoryGroup], *, least: float | None = None, most: float | None = None
) -> list[TrajectoryGroup]:
    """Keep groups whose members sampled so many tokens on average."""
    return _within(groups, MEASURES["tokens"], least, most)


def deduplicate(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Keep the first of groups that began in the same and whose members said the same."""
    seen: set[object] = set()
    kept = []
    for group in groups:
        members = sound_members(group)
        began = members[0].initial_hash if members else group.group_id
        said = (group.tag, began, tuple(tuple(turn.response for turn in member.turns) for member in members))
        if said not in seen:
            seen.add(said)
            kept.append(group)
    return kept


def shape_rewards(
    groups: Sequence[TrajectoryGroup], *, metric: str, op: str = "add", weight: float = 1.0
) -> list[TrajectoryGroup]:
    """Change scores by a metric of each member: ``add``, ``subtract``, ``multiply``, ``divide`` by ``weight * metric``.

    The last turn's reward has the difference, under the metric's name. Members without the metric stay as they are.

    Raises:
        ValueError: ``op`` is another word.
    """
    shaped = _OPS.get(op.lower())
    if shaped is None:
        raise ValueError(f"op must be one of {', '.join(_OPS)}, got {op!r}")
    for group in groups:
        for member in sound_members(group):
            if member.turns and metric in member.metrics:
                change_score(member, metric, shaped(member.score or 0.0, weight * member.metrics[metric]))
    return list(groups)


def human_review(
    groups: Sequence[TrajectoryGroup],
    *,
    of: str = "score",
    least: float | None = None,
    most: float | None = None,
    share: float = 1.0,
) -> list[TrajectoryGroup]:
    """Let groups wait in the store until a person has looked at them: a share of those whose measure is within bounds.

    Groups without a sound member never wait.

    Args:
        groups: The groups; all of them are returned.
        of: The measure: ``score``, ``spread``, ``success`` or ``tokens``, as the operators of these names have it.
        least: Its least.
        most: Its most.
        share: How many of these, in (0, 1]. Which ones says a digest of their ids: the same in every run.

    Raises:
        ValueError: There is no such measure, or no such share.
    """
    if of not in MEASURES:
        raise ValueError(f"of must be one of {', '.join(MEASURES)}, got {of!r}")
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    for group in _within([group for group in groups if sound_members(group)], MEASURES[of], least, most):
        group.waits = group.waits or _drawn(group.group_id) < share
    return list(groups)


def _drawn(name: str) -> float:
    """Return a number in [0, 1) that a name decides."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


_OPS: Final[dict[str, Callable[[float, float], float]]] = {
    "add": lambda score, by: score + by,
    "subtract": lambda score, by: score - by,
    "multiply": lambda score, by: score * by,
    "divide": lambda score, by: score / by,
}


def sound_members(group: TrajectoryGroup) -> list[Trajectory]:
    """Return the members that did not break."""
    return [member for member in group.trajectories if not member.status.is_error]


MEASURES: Final[Mapping[str, Callable[[TrajectoryGroup], float]]] = {
    "score": lambda group: fmean(group.scores),
    "spread": lambda group: max(group.scores) - min(group.scores),
    "success": lambda group: fmean(member.success for member in sound_members(group)),
    "tokens": lambda group: fmean(member.completion_tokens for member in sound_members(group)),
}
"""What a group with sound members is measured by."""


def _within(
    groups: Sequence[TrajectoryGroup],
    number: Callable[[TrajectoryGroup], float],
    least: float | None,
    most: float | None,
) -> list[TrajectoryGroup]:
    """Keep groups whose number is within bounds, and those without a sound member, which teach nothing anyway."""

    def fits(group: TrajectoryGroup) -> bool:
        if not sound_members(group):
            return True
        found = number(group)
        return (least is None or found >= least) and (most is None or found <= most)

    return [group for group in groups if fits(group)]


SCORE: Final = Registered(keep_scores, "experience")
SPREAD: Final = Registered(keep_spread, "experience")
SUCCESS: Final = Registered(keep_success, "experience")
TOKENS: Final = Registered(keep_tokens, "experience")
DEDUPLICATE_GROUPS: Final = Registered(deduplicate, "experience")
REWARD_SHAPING: Final = Registered(shape_rewards, "experience")
HUMAN_REVIEW: Final = Registered(human_review, "experience")
