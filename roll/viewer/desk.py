"""The groups of a store that wait until a person has looked at them: where the review finds them, and how they look."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.experience.base import ExperienceStore
from roll.experience.errors import StoreError
from roll.experience.folder import is_store
from roll.experience.opened import open_place, place_of
from roll.experience.reviewing import Decision, Waiting
from roll.trajectories.model import Trajectory
from roll.viewer.episodes import Row
from roll.viewer.groups import compare
from roll.viewer.parts import view_episode
from roll.viewer.run_folder import RunFolder

SHOWN = 200
"""Groups that are listed at once."""
_PATIENCE = 3.0
"""Seconds that a page waits for a database, or a cluster."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What the page of waiting groups shows.

    Attributes:
        groups: The first of them.
        number: How many there are.
        problem: Why they cannot be known; empty where they are.
    """

    groups: tuple[Waiting, ...]
    number: int
    problem: str = ""


class Desk:
    """Where a person decides about groups. Methods may be called from any thread.

    Args:
        place: The folder of the store, or its address.
    """

    def __init__(self, place: Path | str) -> None:
        self._place = place
        self._store: ExperienceStore | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, run: RunFolder) -> Desk | None:
        """Return where the groups of a run wait, or of a store whose folder is looked at; ``None`` if nowhere."""
        if is_store(run.path):
            return cls(run.path)
        place = place_of(run.config().get("experience"))
        if run.config().get("mode") not in ("explore", "train") or not place:
            return None
        return cls(place)

    def listed(self) -> Listed:
        """Return the groups that wait."""
        try:
            found = self._open().waiting()
        except StoreError as error:
            return Listed((), 0, str(error))
        return Listed(tuple(found[:SHOWN]), len(found))

    def look(self, group_id: str) -> dict[str, Any]:
        """Return what the page of a group shows.

        Raises:
            StoreError: It does not wait, or did, or cannot be read.
        """
        group = self._open().look(group_id)
        members = {_row(each): each for each in group.trajectories}
        rows = list(members)
        about: dict[str, Any] = {
            "phase": "train",
            "step": min((row.oldest or 0 for row in rows), default=0),
            "group": group_id,
            "scores": [row.score for row in rows],
        }
        return about | compare(rows, rows, lambda row: view_episode(members[row], {}))

    def decide(self, group_id: str, decision: Decision) -> None:
        """Take note of a decision.

        Raises:
            StoreError: The group cannot be decided about.
            ValueError: There is not one score for each member.
        """
        self._open().decide(group_id, decision)

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _open(self) -> ExperienceStore:
        with self._lock:
            if self._store is None:
                self._store = open_place(self._place, patience=_PATIENCE)
            return self._store


def _row(member: Trajectory) -> Row:
    versions = [version for turn in member.turns for version in turn.policy_version]
    return Row(
        id=member.episode,
        phase="train",
        step=0,
        tag=member.tag,
        group_id=member.group_id,
        episode=member.episode,
        seed=member.seed,
        status=member.status.value,
        score=member.score,
        success=member.success,
        broken=member.status.is_error,
        error=member.error,
        tokens=member.completion_tokens,
        turns=len(member.turns),
        oldest=min(versions, default=None),
        newest=max(versions, default=None),
        answer=bool(member.turns) and all(turn.action == "" for turn in member.turns),
        prompt=None,
        seat="",
    )
