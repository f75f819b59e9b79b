"""An experience store in the memory of one process."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence

from roll.experience.base import Lease, Reader, StoreCounts
from roll.experience.entries import entries_of, first_of_each, lease_of
from roll.experience.index import Index
from roll.experience.opening import open_in_memory
from roll.trajectories.model import TrajectoryGroup


class MemoryStore:
    """Groups between what samples and what learns in the same process; nothing is left when it ends.

    What is leased is a copy of what was appended, as with a store on disk. Threads may share it.

    Args:
        reader: Name of who learns.
        uses: How often a group is given out.
        max_age: How many versions a group may be behind; ``None``: no limit (see ``Reader``).

    Raises:
        ValueError: ``uses`` is below 1 or ``max_age`` below 0.
    """

    def __init__(self, reader: str = "train", uses: int = 1, max_age: int | None = None) -> None:
        self._reader = Reader(reader, uses, max_age)
        self._index = Index(open_in_memory())
        self._kept: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def as_reader(self, reader: str = "train", uses: int = 1, max_age: int | None = None) -> MemoryStore:
        """Return the same store for another reader, or for the same one with other options."""
        other = MemoryStore.__new__(MemoryStore)
        other._reader = Reader(reader, uses, max_age)
        other._index, other._kept, other._lock = self._index, self._kept, self._lock
        return other

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups that are new; see ``ExperienceStore.append``."""
        with self._lock:
            first = first_of_each(groups)
            missing = self._index.missing(group.group_id for group in first)
            new = [group for group in first if group.group_id in missing]
            self._kept |= {group.group_id: pickle.dumps(group, pickle.HIGHEST_PROTOCOL) for group in new}
            return len(self._index.add(entries_of(new, policy_version)))

    def lease(self, count: int, step: int) -> Lease | None:
        """Return the groups of a step; see ``ExperienceStore.lease``."""
        found = self._index.lease(self._reader, count, step)
        if found is None:
            return None
        return lease_of(step, [(each, pickle.loads(self._kept[each.entry.group_id])) for each in found])

    def commit(self, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        self._index.commit(self._reader, step)

    def rewind(self, step: int) -> None:
        """Forget the leases of all steps after this one."""
        self._index.rewind(self._reader, step)

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

    def close(self) -> None:
        """Do nothing: the groups are there as long as somebody has the store."""
