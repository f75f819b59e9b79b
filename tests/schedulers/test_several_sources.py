"""A stream of several sources that make up a step together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scheduler_fakes import trajectory
from virtual_time import run_in_virtual_time

from roll.schedulers.group_stream import GroupStream, StepGroups
from roll.schedulers.levels import Level, level_sources, level_tasks
from roll.schedulers.source_share import GroupSource
from roll.schedulers.tasks import Task
from roll.trajectories.model import TrajectoryGroup

COUNTS = [("SimpleSokoban", 3), ("FrozenLake", 2)]


class World:
    """Two tags; groups of Sokoban take longer, and a third of them teaches nothing."""

    def __init__(self, ratio: float) -> None:
        self.begun: list[str] = []
        self.events: list[str] = []
        self.admitted: list[int] = []
        self.failure: Exception | None = None
        sources = level_sources(COUNTS, 2, 7, "train-")
        self.stream = GroupStream(
            {
                tag: GroupSource(tasks=sources[tag], play_group=self.play, groups_per_step=count, keep=keep)
                for tag, count in COUNTS
            },
            ratio=ratio,
            pause=lambda: self.note("pause"),
            resume=lambda: self.note("resume"),
            clock=now,
        )

    async def note(self, what: str) -> None:
        self.events.append(what)
        self.admitted.append(self.stream.counts["admitted"])
        await asyncio.sleep(2)

    async def play(self, spec: Task[Level]) -> TrajectoryGroup:
        self.begun.append(spec.group_id)
        await asyncio.sleep(3.0 if spec.tag == "SimpleSokoban" else 1.0)
        if spec.number == 12 and self.failure is not None:
            raise self.failure
        dull = spec.tag == "SimpleSokoban" and spec.number % 3 == 0
        member = trajectory(spec.group_id, 0, [(0, 0)], score=0.0 if dull else 1.0)
        return TrajectoryGroup(spec.group_id, spec.tag, [member])

    async def steps(self, steps: range) -> list[StepGroups]:
        rollouts = []
        for step in steps:
            rollouts.append(await self.stream.next(step, 0))
            await self.stream.update(lambda: self.note("publish"))
        return rollouts


def keep(group: TrajectoryGroup) -> bool:
    return group.trajectories[0].score != 0.0


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_every_step_has_each_tag_in_its_share_although_groups_are_replaced(ratio: float) -> None:
    world = World(ratio)

    async def main() -> list[StepGroups]:
        rollouts = await world.steps(range(1, 4))
        await world.stream.close()
        return rollouts

    rollouts = run_in_virtual_time(main())
    for rollout in rollouts:
        assert [group.tag for group in rollout.groups] == ["SimpleSokoban"] * 3 + ["FrozenLake"] * 2
    trained = [group.group_id for rollout in rollouts for group in rollout.groups]
    assert len(set(trained)) == len(trained) == 15
    assert world.events == ["pause", "publish", "resume"] * 3
    updates = [world.admitted[first : first + 3] for first in (0, 3, 6)]
    assert all(len(set(update)) == 1 for update in updates), "no group begins while weights are published"
    counts = world.stream.counts
    assert counts["trained"] == 15 and counts["filtered"] > 0
    assert counts["admitted"] == counts["trained"] + counts["filtered"] + counts.get("cancelled", 0)
    assert len(set(world.begun)) == len(world.begun)


def test_without_replacements_the_first_step_is_what_a_synchronous_step_asks_for() -> None:
    world = World(0.0)
    run_in_virtual_time(world.steps(range(1, 2)))
    asked = {spec.group_id for spec in level_tasks(COUNTS, 2, 7, "train-")}
    assert asked <= set(world.begun) and world.stream.capacity == 5


def test_a_resumed_run_goes_on_with_every_tag() -> None:
    async def main() -> tuple[list[StepGroups], list[StepGroups]]:
        first, second = World(0.5), World(0.5)
        before = await first.steps(range(1, 3))
        second.stream.load_state_dict(first.stream.state_dict())
        await first.stream.close()
        after = await second.steps(range(3, 5))
        await second.stream.close()
        return before, after

    before, after = run_in_virtual_time(main())
    trained = [group.group_id for rollout in before + after for group in rollout.groups]
    assert len(set(trained)) == len(trained) == 20


def test_an_engine_that_fails_in_one_source_ends_the_step() -> None:
    async def main() -> Any:
        world = World(1.0)
        world.failure = MemoryError("the engine is out of memory")
        try:
            await world.steps(range(1, 6))
        finally:
            await world.stream.close()
            assert world.stream.live == 0

    with pytest.raises(MemoryError, match="out of memory"):
        run_in_virtual_time(main())
