"""An experience store in a folder, for several programs on one machine at once."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from roll.common.disk import sync
from roll.experience.base import Lease, Reader, StoreCounts
from roll.experience.entries import Entry, Indexed, Segment, entries_of, first_of_each, group_of, lease_of
from roll.experience.index import Index
from roll.experience.opening import open_file
from roll.experience.segments import SegmentReader, SegmentWriter
from roll.trajectories.model import Trajectory, TrajectoryGroup

INDEX: Final = "index.sqlite"
SEGMENTS: Final = "segments"


class FolderStore:
    """Groups between what samples and what learns, in programs that may be killed at any moment.

    ``segments/`` has the members, a parquet file for each call of :meth:`append`, so append several groups at a time.
    ``index.sqlite`` has everything else. A segment is on the disk before the index knows of it, and what the index does
    not know is swept away when the next writer begins.

    Any number of programs may append and lease at once, on one machine and a disk of its own (SQLite's write-ahead log
    does not work over a network). Threads may share a store; a forked process opens its own.

    Args:
        path: The folder; it is made where there is none.
        reader: Name of who learns.
        uses: How often a group is given out.
        max_age: How many versions a group may be behind; ``None``: no limit (see ``Reader``).

    Raises:
        StoreError: What is there is no store, one of another version, or without its index.
        ValueError: ``uses`` is below 1 or ``max_age`` below 0.
    """

    def __init__(self, path: str | Path, reader: str = "train", uses: int = 1, max_age: int | None = None) -> None:
        self._reader = Reader(reader, uses, max_age)
        self.path = Path(path).absolute()
        segments = self.path / SEGMENTS
        is_new = not segments.exists()
        segments.mkdir(parents=True, exist_ok=True)
        self._index = Index(open_file(self.path / INDEX, segments=segments))
        if is_new:
            sync(self.path)
            sync(self.path.parent)
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
            if self._writer is None:
                self._writer = SegmentWriter(self.path / SEGMENTS, self._has)
            name, digest = self._writer.write(members, policy_version, self.path.name)
        return self.add(entries_of(new, policy_version), Segment(f"{SEGMENTS}/{name}", digest))

    def add(self, entries: Sequence[Entry], segment: Segment) -> int:
        """Make groups exist whose members are in a file already. Returns how many were new."""
        return len(self._index.add(entries, segment))

    def missing(self, group_ids: Iterable[str]) -> set[str]:
        """Return those ids that no group of the store has."""
        return self._index.missing(group_ids)

    def digest(self, path: str) -> str | None:
        """Return what the content of a segment was when it came in; ``None`` if there is no such segment."""
        return self._index.digest(path)

    def lease(self, count: int, step: int) -> Lease | None:
        """Return the groups of a step; see ``ExperienceStore.lease``.

        Raises:
            SegmentError: A file of its groups is damaged, missing or another one. The step keeps its groups.
        """
        found = self._index.lease(self._reader, count, step)
        if found is None:
            return None
        with self._reading:
            members = self._members(found)
        return lease_of(step, [(each, group_of(each, members[each.number])) for each in found])

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
