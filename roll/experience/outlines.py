"""A store that gives out outlines of its groups: their tokens and texts stay in the process that has opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from roll.experience.base import ExperienceStore, KeepsFiles, Lease
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.sealed import Put, seal


class SealedStore:
    """Keeps whole groups, is given outlines of them, and gives out outlines.

    The store itself is asked in a thread: it may wait for a disk, a database or a cluster.

    Args:
        store: What keeps the groups.
        open_member: Returns an episode whole, of which an outline is given.
        put: Puts what an outline lacks somewhere, and says where.
    """

    def __init__(self, store: ExperienceStore, open_member: Callable[[Trajectory], Trajectory], put: Put) -> None:
        self._store = store
        self._open_member = open_member
        self._put = put

    @property
    def keeps_files(self) -> bool:
        """Whether the store keeps files of trajectories (:class:`roll.experience.base.KeepsFiles`)."""
        return isinstance(self._store, KeepsFiles)

    async def ask(self, name: str, *arguments: Any) -> Any:
        """Return what a method of the store returns, or one of its properties is."""
        if name in ("append", "lease", "look"):
            return await getattr(self, name)(*arguments)
        return await asyncio.to_thread(self._asked, name, arguments)

    async def append(self, groups: Sequence[TrajectoryGroup], policy_version: int) -> int:
        """Keep groups that are new; see ``ExperienceStore.append``."""
        whole = [replace(each, trajectories=[*map(self._open_member, each.trajectories)]) for each in groups]
        return await asyncio.to_thread(self._store.append, whole, policy_version)

    async def lease(self, count: int, step: int) -> Lease | None:
        """Return outlines of the groups of a step; see ``ExperienceStore.lease``."""
        lease = await asyncio.to_thread(self._store.lease, count, step)
        return None if lease is None else replace(lease, groups=tuple([await self._outline(g) for g in lease.groups]))

    async def look(self, group_id: str) -> TrajectoryGroup:
        """Return the outline of a group that waits, or that was decided about; see ``ExperienceStore.look``."""
        return await self._outline(await asyncio.to_thread(self._store.look, group_id))

    def _asked(self, name: str, arguments: Sequence[Any]) -> Any:
        found = getattr(self._store, name)
        return found(*arguments) if callable(found) else found

    async def _outline(self, group: TrajectoryGroup) -> TrajectoryGroup:
        return replace(group, trajectories=[await seal(member, self._put) for member in group.trajectories])
