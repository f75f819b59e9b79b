"""What people decide about groups that wait in a store until somebody has looked at them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.scores import change_score

Verdict = Literal["approve", "reject"]

_VERDICTS: Final[dict[str, Verdict]] = {"approve": "approve", "reject": "reject"}
APPROVED: Final = "approved"
REJECTED: Final = "rejected"
REWARD_PART: Final = "human_review"
"""Part of the reward of a member whose score a person replaced."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a group.

    Attributes:
        verdict: ``approve``: it is learned from; ``reject``: it never is.
        scores: New scores of its members, in their order, where it is approved; ``None`` for one that stays. Empty:
            all stay.

    Raises:
        ValueError: A score is not finite, or a rejected group gets scores.
    """

    verdict: Verdict
    scores: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict == "reject" and self.scores:
            raise ValueError("a group that is rejected is never learned from, so it gets no scores")
        for score in self.scores:
            if score is not None and not math.isfinite(score):
                raise ValueError(f"a score must be a finite number, got {score}")

    @classmethod
    def read(cls, words: str) -> Decision:
        """Return the decision that words say: ``approve``, ``reject``, or scores with commas between (``1,-,0.5``).

        Raises:
            ValueError: They say none.
        """
        text = words.strip().lower()
        if text in _VERDICTS:
            return cls(_VERDICTS[text])
        try:
            return cls("approve", tuple(None if each.strip() == "-" else float(each) for each in text.split(",")))
        except ValueError as error:
            raise ValueError(
                f"{words!r} is no decision ({error}): write approve, reject, one score for all members, or a score for "
                "each with commas between (1,-,0.5; - leaves one as it is)"
            ) from error

    @property
    def state(self) -> str:
        """How the group stands in the index afterwards."""
        return APPROVED if self.verdict == "approve" else REJECTED

    def of(self, members: int) -> Decision:
        """Return the same for a group of so many members: one score is that of all.

        Raises:
            ValueError: There are more scores, or fewer.
        """
        if len(self.scores) == 1:
            return Decision(self.verdict, self.scores * members)
        if self.scores and len(self.scores) != members:
            raise ValueError(f"the group has {members} members and gets {len(self.scores)} scores: name one for each")
        return self


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group that waits for a person.

    Attributes:
        group_id: Its id in the store.
        tag: Its tag.
        policy_version: The weights that sampled it.
        members: How many members it has.
        mean_score: Their mean score.
        score_spread: Mean distance of their scores from that.
    """

    group_id: str
    tag: str
    policy_version: int
    members: int
    mean_score: float
    score_spread: float


def with_scores(group: TrajectoryGroup, scores: Sequence[float | None]) -> TrajectoryGroup:
    """Give members of a group the scores that a person gave them, in place; one that broke keeps what it has.

    Args:
        group: The group.
        scores: Of each member, or none at all.
    """
    for member, score in zip(group.trajectories, scores, strict=True) if scores else ():
        if score is not None and member.turns and not member.status.is_error:
            change_score(member, REWARD_PART, score)
    return group


def as_text(scores: Sequence[float | None]) -> str | None:
    """Return scores as the index keeps them."""
    return json.dumps(list(scores)) if scores else None


def from_text(text: str | None) -> tuple[float | None, ...]:
    """Return the scores that the index kept."""
    return tuple(json.loads(text)) if text else ()
