"""Groups that are gone from a store, as the run that learns sees that. Here the memory of a process loses them."""

from __future__ import annotations

import asyncio

import pytest

from roll.experience.base import Lease, StoreCounts
from roll.experience.memory import MemoryStore
from roll.pipelines.experience.people import WaitingForPeople
from roll.pipelines.experience.stored_groups import StoredGroups
from roll.schedulers.groups import RolloutError
from roll.trajectories.model import TrajectoryGroup


def groups(*names: str) -> list[TrajectoryGroup]:
    return [TrajectoryGroup(name, "a", []) for name in names]


class LosesOne(MemoryStore):
    """A store that notices in a lease that a group is gone, as one in a cluster does."""

    def lease(self, count: int, step: int) -> Lease | None:
        self.index.lose(["c"])
        return super().lease(count, step)


def test_groups_that_are_lost_are_counted_and_said_and_a_group_that_was_learned_from_does_not_come_again() -> None:
    store = LosesOne()
    store.append(groups("a", "b", "c", "d", "e"), 0)
    stored = StoredGroups(store, 2, {}, WaitingForPeople(None, "", str))
    first = asyncio.run(stored.next(1, 0))
    assert first.metrics["rollout/groups_lost"] == 1 and "experience.path" in first.notes[0]
    stored.saved()
    store.index.lose(["a"])
    assert store.append(groups("a", "c"), 1) == 1, "a was learned from"
    assert store.counts() == StoreCounts(5, 3, 3, 0, 2, 0, lost=2)
    second = asyncio.run(stored.next(2, 0))
    assert [each.group_id for each in second.groups] == ["d", "e"] and second.metrics["rollout/groups_lost"] == 1
    store.finish()
    with pytest.raises(RolloutError, match=r"0 of 2 groups left \(0 fresh, 3 are lost\)"):
        asyncio.run(stored.next(3, 0))
