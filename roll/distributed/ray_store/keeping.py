"""Where the actor of an experience store keeps groups: in Ray's object store, or in a folder of its machine."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import ray

from roll.experience.entries import Entry, Indexed
from roll.experience.folder import FolderStore
from roll.experience.index import Index
from roll.experience.opening import open_in_memory
from roll.trajectories.model import TrajectoryGroup

Sealed = np.ndarray[Any, np.dtype[np.uint8]]
"""A group as bytes. Ray hands an array on as it lies in shared memory, and bytes as a copy."""


def seal(group: TrajectoryGroup) -> Sealed:
    """Return a group as bytes."""
    return np.frombuffer(pickle.dumps(group, pickle.HIGHEST_PROTOCOL), np.uint8)


def unseal(sealed: Sealed) -> TrajectoryGroup:
    """Return the group of some bytes."""
    group: TrajectoryGroup = pickle.loads(sealed.data)
    return group


class Keeping(Protocol):
    """What keeps groups."""

    @property
    def index(self) -> Index:
        """What knows which groups there are."""
        ...

    def append(self, entries: Sequence[Entry], sealed: Sequence[Sealed], policy_version: int) -> int:
        """Keep groups that are new; returns how many were.

        Args:
            entries: What the index keeps of them.
            sealed: The groups.
            policy_version: The weights that sampled them.
        """
        ...

    def references(self, found: Sequence[Indexed]) -> list[ray.ObjectRef[Sealed]]:
        """Return where groups lie in the object store."""
        ...

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``."""
        ...


class HeldGroups:
    """Groups in the object store. They belong to this process: they are there as long as it lives."""

    def __init__(self) -> None:
        self._index = Index(open_in_memory())
        self._held: dict[str, ray.ObjectRef[Sealed]] = {}

    @property
    def index(self) -> Index:
        """What knows which groups there are."""
        return self._index

    def append(self, entries: Sequence[Entry], sealed: Sequence[Sealed], policy_version: int) -> int:
        """Put groups that are new into the object store, once; returns how many were."""
        missing = self._index.missing(entry.group_id for entry in entries)
        for entry, content in zip(entries, sealed, strict=True):
            if entry.group_id in missing:
                self._held[entry.group_id] = ray.put(content)
        return len(self._index.add(entries))

    def references(self, found: Sequence[Indexed]) -> list[ray.ObjectRef[Sealed]]:
        """Return where groups lie."""
        return [self._held[each.entry.group_id] for each in found]

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``."""
        self._index.keep_first(count)
        for group_id in self._index.missing(self._held):
            del self._held[group_id]


class FiledGroups:
    """Groups in a folder, where they outlive this process; they pass through the object store.

    Args:
        folder: The folder, on this machine.

    Raises:
        StoreError: It cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._store = FolderStore(folder)

    @property
    def index(self) -> Index:
        """What knows which groups there are."""
        return self._store.index

    def append(self, entries: Sequence[Entry], sealed: Sequence[Sealed], policy_version: int) -> int:
        """Write groups that are new to the disk; returns how many were.

        Raises:
            ValueError: A number does not fit its column.
        """
        return self._store.append([unseal(each) for each in sealed], policy_version)

    def references(self, found: Sequence[Indexed]) -> list[ray.ObjectRef[Sealed]]:
        """Read groups, and put them into the object store for who asked.

        Raises:
            SegmentError: A file is damaged, missing or another one.
        """
        return [ray.put(seal(group)) for group in self._store.groups_of(found)]

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``."""
        self._store.keep_first(count)
