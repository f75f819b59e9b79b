"""An experience store in a folder, for several programs on one machine at once."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from roll.common.disk import sync_way
from roll.experience.base import Lease, Reader
from roll.experience.entries import Entry, Indexed, Segment, entries_of, first_of_each, group_of
from roll.experience.index import Index
from roll.experience.indexed import TRAIN, IndexedStore
from roll.experience.opening import open_file
from roll.experience.segments import SegmentReader, SegmentWriter
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.store import open_trajectories

INDEX: Final = "index.sqlite"
SEGMENTS: Final = "segments"


def is_store(folder: Path) -> bool:
    """Return whether there is a store in a folder."""
    return (folder / INDEX).is_file() and (folder / SEGMENTS).is_dir()


class FolderStore(IndexedStore):
    """Groups between what samples and what learns, in programs that may be killed at any moment.

    ``segments/`` has the members, a parquet file for each call of :meth:`append`, so append several groups at a time.
    ``index.sqlite`` has everything else. A segment is on the disk before the index knows of it, and what the index does
    not know is swept away when the next writer begins.

    Any number of programs may append and lease at once, on one machine and a disk of its own (SQLite's write-ahead log
    does not work over a network). Threads may share a store; a forked process opens its own.

    Args:
        path: The folder; it is made where there is none.
        reader: Who learns, and how.

    Raises:
        StoreError: What is there is no store, one of another version, or without its index.
    """

    def __init__(self, path: str | Path, reader: Reader = TRAIN) -> None:
        self.path = Path(path).absolute()
        segments = self.path / SEGMENTS
        segments.mkdir(parents=True, exist_ok=True)
        super().__init__(Index(open_file(self.path / INDEX, segments=segments)), reader)
        sync_way(self.path)
        self._segments = SegmentReader()
        self._writer: SegmentWriter | None = None
        self._writing, self._reading = threading.Lock(), threading.Lock()

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups that are new, on the disk when this returns; see ``ExperienceStore.append``.

        Raises:
            ValueError: A number does not fit its column (token ids are 32-bit, seeds unsigned 64-bit). No group of the
                call is kept.
        """
        first = first_of_each(groups)
        missing = self.missing(group.group_id for group in first)
        new = [group for group in first if group.group_id in missing]
        if not new:
            return len(self._index.add([]))
        members = [member for group in new for member in group.trajectories]
        with self._writing:
            name, digest = self._own_writer.write(members, policy_version, self.path.name)
        return self.add(entries_of(new, policy_version), Segment(f"{SEGMENTS}/{name}", digest))

    def append_file(
        self,
        file: Path,
        groups: Sequence[TrajectoryGroup],
        policy_version: int,
        kept: Collection[str],
        prefix: str = "",
    ) -> int:
        """Keep groups that lie in a file of trajectories already: it is linked, and not written once more.

        Nothing may write into that file later; it may be replaced or removed.

        Args:
            file: The file, with the members of all ``groups`` one after another.
            groups: The groups.
            policy_version: The weights that sampled them.
            kept: The ids of those that are to be kept.
            prefix: Put before the ids of groups and of their members.

        Returns:
            How many were new.

        Raises:
            OSError: It cannot be linked.
        """
        entries = [replace(each, group_id=prefix + each.group_id) for each in entries_of(groups, policy_version)
                   if each.group_id in kept]  # fmt: skip
        missing = self.missing(each.group_id for each in entries)
        if not missing:
            return len(self._index.add([]))
        with self._writing:
            name, digest = self._own_writer.link(file)
        new = [each for each in entries if each.group_id in missing]
        return self.add(new, Segment(f"{SEGMENTS}/{name}", digest, prefix))

    def file_of(self, lease: Lease) -> Path | None:
        """Return the file that has exactly the members of a lease, in its order; ``None`` where there is none."""
        found = self._index.lease(self._reader, len(lease.numbers), lease.step) or []
        places = {each.segment for each in found}
        segment = next(iter(places), None)
        if len(places) != 1 or segment is None or segment.prefix or any(each.replaced for each in found):
            return None
        rows = [row for each in found for row in range(each.entry.first_row, each.entry.first_row + each.entry.members)]
        with open_trajectories(self.path / segment.path) as file:
            return self.path / segment.path if rows == list(range(file.metadata.num_rows)) else None

    @property
    def _own_writer(self) -> SegmentWriter:
        if self._writer is None:
            self._writer = SegmentWriter(self.path / SEGMENTS, self._has)
        return self._writer

    def add(self, entries: Sequence[Entry], segment: Segment) -> int:
        """Make groups exist whose members are in a file already. Returns how many were new."""
        return len(self._index.add(entries, segment))

    def missing(self, group_ids: Iterable[str]) -> set[str]:
        """Return those ids that no group of the store has."""
        return self._index.missing(group_ids)

    def digest(self, path: str) -> str | None:
        """Return what the content of a segment was when it came in; ``None`` if there is no such segment."""
        return self._index.digest(path)

    def groups_of(self, found: Sequence[Indexed]) -> list[TrajectoryGroup]:
        """Return groups of the index, as they were appended."""
        with self._reading:
            members = self._members(found)
        return [group_of(each, members[each.number]) for each in found]

    def close(self) -> None:
        """Let go of files and locks. What was appended and leased stays."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._index.close()

    def _has(self, name: str) -> bool:
        return self._index.digest(f"{SEGMENTS}/{name}") is not None

    def _members(self, found: Sequence[Indexed]) -> dict[int, list[Trajectory]]:
        """Return the members of groups by number; each segment is read once."""
        by_segment: dict[Segment, list[Indexed]] = defaultdict(list)
        for each in found:
            assert each.segment is not None, "every group of a folder has a segment"
            by_segment[each.segment].append(each)
        members: dict[int, list[Trajectory]] = {}
        for segment, stored in by_segment.items():
            rows = [(each.entry.first_row, each.entry.members) for each in stored]
            read = self._segments.read(self.path / segment.path, segment.digest, rows)
            members.update(zip((each.number for each in stored), read, strict=True))
        return members
