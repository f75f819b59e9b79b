"""An experience store in the memory of one process."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence

from roll.experience.base import Reader
from roll.experience.entries import Indexed, entries_of, first_of_each
from roll.experience.index import Index
from roll.experience.indexed import TRAIN, IndexedStore
from roll.experience.opening import open_in_memory
from roll.trajectories.model import TrajectoryGroup


class MemoryStore(IndexedStore):
    """Groups between what samples and what learns in the same process; nothing is left when it ends.

    What is leased is a copy of what was appended, as with a store on disk. Threads may share it.

    Args:
        reader: Who learns, and how.
    """

    def __init__(self, reader: Reader = TRAIN) -> None:
        super().__init__(Index(open_in_memory()), reader)
        self._kept: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def as_reader(self, reader: Reader = TRAIN) -> MemoryStore:
        """Return the same store for another reader, or for the same one with other options."""
        other = copy.copy(self)
        other._reader = reader
        return other

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups that are new; see ``ExperienceStore.append``."""
        with self._lock:
            first = first_of_each(groups)
            missing = self._index.missing(group.group_id for group in first)
            new = [group for group in first if group.group_id in missing]
            self._kept |= {group.group_id: pickle.dumps(group, pickle.HIGHEST_PROTOCOL) for group in new}
            return len(self._index.add(entries_of(new, policy_version)))

    def groups_of(self, found: Sequence[Indexed]) -> list[TrajectoryGroup]:
        """Return groups of the index, as they were appended."""
        return [pickle.loads(self._kept[each.entry.group_id]) for each in found]

    def close(self) -> None:
        """Do nothing: the groups are there as long as somebody has the store."""
