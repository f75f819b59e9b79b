"""What every experience store does alike, wherever it keeps the members of groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from roll.experience.base import Lease, Reader, StoreCounts
from roll.experience.entries import Indexed, entries_of, lease_of
from roll.experience.index import Index
from roll.experience.reviewing import Decision, Waiting, with_scores
from roll.trajectories.model import TrajectoryGroup

TRAIN: Final = Reader()
"""Who learns where nobody is named."""


class IndexedStore(ABC):
    """A store whose index says which groups there are and who was given which; see ``ExperienceStore``.

    Args:
        index: The index.
        reader: Who learns, and how.
    """

    def __init__(self, index: Index, reader: Reader) -> None:
        self._index = index
        self._reader = reader

    @property
    def index(self) -> Index:
        """What knows which groups there are, and who was given which."""
        return self._index

    @abstractmethod
    def groups_of(self, found: Sequence[Indexed]) -> list[TrajectoryGroup]:
        """Return groups of the index, as they were appended."""

    def lease(self, count: int, step: int) -> Lease | None:
        """Return the groups of a step; see ``ExperienceStore.lease``.

        Raises:
            SegmentError: A file of its groups is damaged, missing or another one. The step keeps its groups.
        """
        found = self._index.lease(self._reader, count, step)
        if found is None:
            return None
        pairs = list(zip(found, self.groups_of(found), strict=True))
        given = [(each, with_scores(replace(group, waits=False), each.replaced)) for each, group in pairs]
        return lease_of(step, given)

    def waiting(self) -> list[Waiting]:
        """Return the groups that wait until a person has looked at them."""
        return self._index.waiting()

    def look(self, group_id: str) -> TrajectoryGroup:
        """Return a group that waits, or that was decided about, as it was appended.

        Raises:
            ReviewError: There is none of this id, or it never waited.
        """
        (group,) = self.groups_of([self._index.reviewed(group_id)])
        return group

    def decide(self, group_id: str, decision: Decision) -> None:
        """Take note of what a person decided about a group; see ``ExperienceStore.decide``.

        Raises:
            ReviewError: There is none of this id, it never waited, or it was given out.
            ValueError: There is not one score for each member.
        """
        group = self.look(group_id)
        whole = decision.of(len(group.trajectories))
        (entry,) = entries_of([with_scores(group, whole.scores)], 0)
        self._index.decide(group_id, whole, entry.scores)

    def commit(self, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        self._index.commit(self._reader, step)

    def rewind(self, step: int) -> None:
        """Forget the leases of all steps after this one."""
        self._index.rewind(self._reader, step)

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``; see ``ExperienceStore.keep_first``."""
        self._index.keep_first(count)

    def finish(self) -> None:
        """Take note that nothing more will be appended."""
        self._index.finish()

    @property
    def finished(self) -> bool:
        """Whether nothing more will be appended."""
        return self._index.finished

    def counts(self) -> StoreCounts:
        """Return how the store stands for its reader."""
        return self._index.counts(self._reader)
