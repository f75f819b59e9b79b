"""Another score for a trajectory than the one that it earned."""

from __future__ import annotations

from roll.trajectories.model import Trajectory


def change_score(member: Trajectory, name: str, score: float) -> None:
    """Give a trajectory another score, in place.

    Args:
        member: One with turns: the reward of the last gets the difference.
        name: Part of the reward that has the difference.
        score: The new score.
    """
    difference = score - (member.score or 0.0)
    last = member.turns[-1]
    member.score = score
    last.reward += difference
    last.reward_parts[name] = last.reward_parts.get(name, 0.0) + difference
