"""How far the weights that sampled a token are behind those that it trains."""

from __future__ import annotations

from collections.abc import Sequence

from roll.trajectories.model import TrajectoryGroup, Turn


def oldest_version(group: TrajectoryGroup) -> int | None:
    """Return the oldest weights that sampled a token of a group, ``None`` if it has no turn that is trained on."""
    return min((turn.policy_version[0] for turn in _turns([group])), default=None)


def staleness_metrics(groups: Sequence[TrajectoryGroup], version: int) -> dict[str, float]:
    """Describe how stale the sampled tokens of a step are.

    An engine reports the oldest and newest weights of each turn. Every token of a turn counts as sampled by the oldest,
    so ``mean`` and ``max`` are upper bounds, exact where no update came in between; ``mean_newest`` is the lower bound.

    Args:
        groups: What the step trains on; members that broke are left out.
        version: The weights that it trains, before its first update.

    Returns:
        In weight versions per token ``mean``, ``mean_newest`` and ``max``; ``stale_tokens``, the share of tokens that
        are behind at all; ``mixed_turns``, the share of turns that went on under new weights. All 0 without tokens.
    """
    tokens = stale = behind = behind_newest = worst = mixed = turns = 0
    for turn in _turns(groups):
        oldest, newest = turn.policy_version
        count = len(turn.completion_ids)
        tokens += count
        behind += count * (version - oldest)
        behind_newest += count * (version - newest)
        stale += count * (oldest < version)
        worst = max(worst, version - oldest)
        mixed += oldest != newest
        turns += 1
    per_token = max(tokens, 1)
    return {
        "mean": behind / per_token,
        "mean_newest": behind_newest / per_token,
        "max": float(worst),
        "stale_tokens": stale / per_token,
        "mixed_turns": mixed / max(turns, 1),
    }


def _turns(groups: Sequence[TrajectoryGroup]) -> list[Turn]:
    return [
        turn
        for group in groups
        for trajectory in group.trajectories
        if not trajectory.status.is_error
        for turn in trajectory.turns
    ]
