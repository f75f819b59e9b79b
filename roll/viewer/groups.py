"""The members of a group side by side: where they part, and how each did beside the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roll.viewer.episodes import Row
from roll.viewer.parts import EpisodeView

MEMBERS: Final = 16
"""Members that are shown side by side."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group.

    Attributes:
        row: Its row in the table.
        view: What its page shows.
        advantage: Its score less the mean of the members that were scored; ``None`` where it was not.
    """

    row: Row
    view: EpisodeView
    advantage: float | None


def compare(rows: Sequence[Row], shown: Sequence[Row], view: Callable[[Row], EpisodeView]) -> dict[str, Any]:
    """Return what the page of a group shows: its members, their turns, and the first turn where they differ.

    Args:
        rows: The members of the group.
        shown: Those of them that can be shown.
        view: Returns all of one.
    """
    scores = [row.score for row in rows if row.score is not None and not row.broken]
    mean = sum(scores) / len(scores) if scores else 0.0
    members = [Member(row, view(row), None if row.score is None else row.score - mean) for row in shown[:MEMBERS]]
    responses = [[turn.turn.response for turn in member.view.turns] for member in members]
    return {
        "members": members,
        "left_out": len(rows) - len(members),
        "turns": max((len(each) for each in responses), default=0),
        "diverged": first_difference(responses),
    }


def first_difference(members: Sequence[Sequence[str]]) -> int | None:
    """Return the first turn, from 0, whose responses are not all the same; ``None`` where no turn differs.

    A member that ended before the others differs from them at the turn that it does not have.
    """
    for turn in range(max(map(len, members), default=0)):
        if len({each[turn] if turn < len(each) else None for each in members}) > 1:
            return turn
    return None
