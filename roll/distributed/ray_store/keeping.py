"""Where an experience store in Ray keeps groups: in the object stores of its machines, or in a folder of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import ray

from roll.distributed.ray_store.keeper import Sealed, seal, unseal
from roll.experience.entries import Entry, Indexed
from roll.experience.folder import FolderStore
from roll.experience.index import Index
from roll.experience.opening import open_in_memory


class Keeping(Protocol):
    """What keeps groups."""

    @property
    def index(self) -> Index:
        """What knows which groups there are."""
        ...

    def append(self, entries: Sequence[Entry], places: Sequence[ray.ObjectRef[Sealed]], policy_version: int) -> int:
        """Keep groups that are new; returns how many were.

        Args:
            entries: What the index keeps of them.
            places: Where they lie in the object store.
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
    """References to groups that lie in the object stores of those machines from which they were appended."""

    def __init__(self) -> None:
        self._index = Index(open_in_memory())
        self._held: dict[str, ray.ObjectRef[Sealed]] = {}

    @property
    def index(self) -> Index:
        """What knows which groups there are."""
        return self._index

    def append(self, entries: Sequence[Entry], places: Sequence[ray.ObjectRef[Sealed]], policy_version: int) -> int:
        """Hold groups that are new where they lie; returns how many were."""
        new = self._index.add(entries)
        for entry, place in zip(entries, places, strict=True):
            if entry.group_id in new:
                self._held[entry.group_id] = place
        return len(new)

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

    def append(self, entries: Sequence[Entry], places: Sequence[ray.ObjectRef[Sealed]], policy_version: int) -> int:
        """Write groups that are new to the disk; returns how many were.

        Raises:
            ValueError: A number does not fit its column.
        """
        return self._store.append([unseal(each) for each in ray.get(list(places))], policy_version)

    def references(self, found: Sequence[Indexed]) -> list[ray.ObjectRef[Sealed]]:
        """Read groups, and put them into the object store for who asked.

        Raises:
            SegmentError: A file is damaged, missing or another one.
        """
        return [ray.put(seal(group)) for group in self._store.groups_of(found)]

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``."""
        self._store.keep_first(count)
