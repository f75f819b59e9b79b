"""Of two episodes from one start the better and the worse one, as rows for learning from preferences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from roll.trajectories.model import Trajectory

PROMPT: Final = "prompt"
CHOSEN: Final = "chosen"
REJECTED: Final = "rejected"


def pair_row(better: Trajectory, worse: Trajectory) -> dict[str, Any] | None:
    """Return what was asked, and both conversations that followed, as messages.

    The ``datasets`` library and TRL read such rows. Later observations of an episode are messages of the user.

    Returns:
        The row; ``None`` where both are the same, or one is of an agent that began anew: no one conversation followed.
    """
    if not (_is_one_conversation(better) and _is_one_conversation(worse)):
        return None
    chosen, rejected = _answers(better), _answers(worse)
    if chosen == rejected:
        return None
    scores = {"chosen_score": better.score, "rejected_score": worse.score}
    return {PROMPT: better.messages, CHOSEN: chosen, REJECTED: rejected, "tag": better.tag, **scores}


def group_pairs(trajectories: Iterable[Trajectory], margin: float = 0.0) -> Iterator[dict[str, Any]]:
    """Yield a pair for each group: its best member, and its worst one.

    Args:
        trajectories: Of one step; those that broke, were never scored, or have branches are left out.
        margin: Groups whose best score is not above the worst by more than this have no pair.
    """
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        is_whole = trajectory.turns and trajectory.score is not None and not trajectory.status.is_error
        if is_whole and _is_one_conversation(trajectory):
            groups.setdefault(trajectory.group_id, []).append(trajectory)
    for members in groups.values():
        scores = [member.score or 0.0 for member in members]
        if max(scores) - min(scores) > margin:
            row = pair_row(members[scores.index(max(scores))], members[scores.index(min(scores))])
            if row is not None:
                yield row


def _is_one_conversation(trajectory: Trajectory) -> bool:
    return not any(turn.begins_anew for turn in trajectory.turns)


def _answers(trajectory: Trajectory) -> list[dict[str, str]]:
    """Return what was said after the prompt."""
    return trajectory.conversation[len(trajectory.messages) :]
