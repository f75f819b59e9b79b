"""An experience store that the worker that learns has opened: the driver is given outlines of its groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from roll.distributed import WorkerDiedError
from roll.experience.base import Lease, StoreCounts
from roll.experience.reviewing import Decision, Waiting
from roll.trajectories.model import TrajectoryGroup


class AskStore(Protocol):
    """Calls the store in the other process, and waits for what it returns."""

    def __call__(self, name: str, /, *arguments: Any) -> Any:
        """Return what a method of the store returns, or one of its properties is."""
        ...


class StoreElsewhere:
    """A store in another process; see :class:`roll.experience.base.ExperienceStore`.

    Groups that are appended may be outlines whose contents that process has, and those that are leased are such ones.

    Args:
        ask: Calls it.
    """

    def __init__(self, ask: AskStore) -> None:
        self._ask = ask

    def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups; returns how many were new."""
        return int(self._ask("append", groups, policy_version))

    def lease(self, count: int, step: int) -> Lease | None:
        """Return outlines of the groups that a step trains on."""
        lease: Lease | None = self._ask("lease", count, step)
        return lease

    def waiting(self) -> list[Waiting]:
        """Return the groups that wait until a person has looked at them, in the order in which they came."""
        return list(self._ask("waiting"))

    def look(self, group_id: str) -> TrajectoryGroup:
        """Return the outline of a group that waits, or that was decided about."""
        group: TrajectoryGroup = self._ask("look", group_id)
        return group

    def decide(self, group_id: str, decision: Decision) -> None:
        """Take note of what a person decided about a group that waits."""
        self._ask("decide", group_id, decision)

    def commit(self, step: int) -> None:
        """Take note that all steps up to this one are in a checkpoint."""
        self._ask("commit", step)

    def rewind(self, step: int) -> None:
        """Forget the leases of all steps after this one."""
        self._ask("rewind", step)

    def keep_first(self, count: int) -> None:
        """Forget all groups but the first ``count``."""
        self._ask("keep_first", count)

    def finish(self) -> None:
        """Take note that nothing more will be appended."""
        self._ask("finish")

    @property
    def finished(self) -> bool:
        """Whether nothing more will be appended."""
        return bool(self._ask("finished"))

    def counts(self) -> StoreCounts:
        """Return how the store stands for its reader."""
        counts: StoreCounts = self._ask("counts")
        return counts

    def close(self) -> None:
        """Let it go of its files, unless it has done so by dying."""
        try:
            self._ask("close")
        except WorkerDiedError:
            return


class FilesElsewhere(StoreElsewhere):
    """Such a store that keeps files of trajectories; see :class:`roll.experience.base.KeepsFiles`."""

    def append_file(
        self,
        file: Path,
        groups: Sequence[TrajectoryGroup],
        policy_version: int,
        kept: Collection[str],
        prefix: str = "",
    ) -> int:
        """Keep groups that lie in a file already; returns how many were new.

        Raises:
            OSError: The file cannot be linked.
        """
        return int(self._ask("append_file", file, groups, policy_version, kept, prefix))

    def file_of(self, lease: Lease) -> Path | None:
        """Return the file that has exactly the members of a lease, in its order."""
        file: Path | None = self._ask("file_of", replace(lease, groups=()))
        return file
