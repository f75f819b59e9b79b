"""A store that is given outlines and gives out outlines: it keeps whole groups, and who leases them sees no token."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from experience_support import make_group, opener

from roll.experience.outlines import SealedStore
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.trajectories.sealed import Contents, SealedTrajectory, opened, seal
from roll.trajectories.shelf import Shelf
from roll.trajectories.store import write_trajectories


@dataclass(frozen=True)
class Number:
    """A place on a shelf that only who has the shelf can open."""

    number: int

    def open(self) -> Contents:
        raise AssertionError("nothing is fetched")


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_what_is_leased_are_outlines_of_what_was_appended(kind: str, tmp_path: Path) -> None:
    shelf = Shelf()

    async def put(contents: Contents) -> Number:
        return Number(shelf.put(contents))

    async def outlines(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return [replace(each, trajectories=[await seal(one, put) for one in each.trajectories]) for each in groups]

    def whole(member: Trajectory) -> Trajectory:
        assert isinstance(member, SealedTrajectory)
        return opened(member, *shelf.get([member.parcel.number]))

    async def there_and_back() -> None:
        groups, open_again = [make_group(number) for number in range(4)], opener(kind, tmp_path)
        store = SealedStore(open_again(), whole, put)
        assert store.keeps_files == (kind == "folder")
        assert await store.ask("append", await outlines(groups), 7) == 4
        kept = open_again("another").lease(4, 1)
        assert kept is not None and list(kept.groups) == [make_group(number) for number in range(4)]
        lease = await store.ask("lease", 3, 1)
        assert all(isinstance(one, SealedTrajectory) for each in lease.groups for one in each.trajectories)
        assert [replace(each, trajectories=[*map(whole, each.trajectories)]) for each in lease.groups] == groups[:3]
        assert lease.policy_version == (7, 7, 7) and await store.ask("lease", 3, 2) is None
        await store.ask("finish")
        assert await store.ask("finished") and (await store.ask("counts")).fresh == 1
        await store.ask("close")

    asyncio.run(there_and_back())


def test_a_file_is_kept_of_which_outlines_are_given(tmp_path: Path) -> None:
    """Whoever wrote it has opened them; nothing is opened again, and the lease finds the file."""
    groups = [make_group(number) for number in range(3)]
    members = [member for each in groups for member in each.trajectories]
    file = write_trajectories(tmp_path / "step=000001.parquet", members, step=1, phase="train", run="one")

    async def put(contents: Contents) -> Number:
        return Number(0)

    def refused(member: Trajectory) -> Trajectory:
        raise AssertionError("nothing is opened")

    async def linked_and_leased() -> None:
        sealed = [replace(each, trajectories=[await seal(one, put) for one in each.trajectories]) for each in groups]
        store = SealedStore(opener("folder", tmp_path)(), refused, put)
        assert await store.ask("append_file", file, sealed, 7, {each.group_id for each in groups}, "") == 3
        lease = await store.ask("lease", 3, 1)
        assert [each.group_id for each in lease.groups] == [each.group_id for each in groups]
        there = await store.ask("file_of", replace(lease, groups=()))
        assert there is not None and there.samefile(file)
        await store.ask("close")

    asyncio.run(linked_and_leased())
