"""Runs wait for people as long as they are told to, say so, and go on when somebody has decided."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from roll.config.experience import ExperienceConfig
from roll.experience.base import Reader, StoreCounts
from roll.experience.folder import FolderStore
from roll.experience.reviewing import Decision
from roll.pipelines.experience.exploring import Explorer
from roll.pipelines.experience.people import WaitingForPeople, command_for, review_metrics, shown_place
from roll.pipelines.experience.stored_groups import StoredGroups
from roll.schedulers.groups import RolloutError
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn


def group(name: str, *, waits: bool) -> TrajectoryGroup:
    turn = Turn([1], [2], [-0.1], (0, 0), "seen", "said", "did", 1.0)
    member = Trajectory("a", name, 0, 0, turns=[turn], status=Status.COMPLETED, score=1.0)
    return TrajectoryGroup(name, "a", [member], waits=waits)


def counts(waiting: int, available: int = 0) -> StoreCounts:
    return StoreCounts(waiting + available, available, available, 0, 0, 0, waiting)


def test_it_says_how_many_wait_once_a_minute_and_gives_up_when_nothing_happens_for_too_long() -> None:
    now, said = [100.0], list[str]()
    people = WaitingForPeople(300, "roll view there", said.append, lambda: now[0])
    for second in range(0, 290, 10):
        now[0] = 100.0 + second
        people.look(counts(3), "step 2: 1 of 4 groups")
    assert said == ["step 2: 1 of 4 groups, 3 wait for review: roll view there"] * 5
    people.look(counts(2), "step 2: 2 of 4 groups")
    now[0] += 299
    people.look(counts(2), "step 2: 2 of 4 groups")
    assert "2 wait for review" in said[-1]
    now[0] += 2
    with pytest.raises(
        RolloutError, match=r"2 wait for review, and nobody.*300 seconds.*review_timeout.*roll view there"
    ):
        people.look(counts(2), "step 2: 2 of 4 groups")


def test_the_line_names_what_opens_the_review_and_no_password() -> None:
    folder, database = (
        ExperienceConfig.model_validate(each) for each in ("out/store", "postgresql://me:secret@host/db")
    )
    assert command_for(folder) == "roll view out/store" and shown_place(folder) == "out/store"
    assert "secret" not in command_for(database) + shown_place(database) and shown_place(database) == "host/db"
    assert review_metrics(counts(0)) == {} and review_metrics(counts(2))["experience/waiting"] == 2


def test_a_step_begins_when_the_last_group_is_decided_though_nothing_more_comes(tmp_path: Path) -> None:
    said = list[str]()
    store, people = FolderStore(tmp_path), WaitingForPeople(None, "roll view there", said.append)
    store.append([group("one", waits=True), group("two", waits=False)], 0)
    store.finish()
    stored = StoredGroups(FolderStore(tmp_path), 2, {}, people)

    async def decide() -> list[str]:
        task = asyncio.ensure_future(stored.next(1, 0))
        await asyncio.sleep(0.3)
        assert not task.done() and said == [
            "step 1: 1 of 2 groups can be learned from, 1 wait for review: roll view there"
        ]
        store.decide("one", Decision("approve"))
        return [each.group_id for each in (await asyncio.wait_for(task, 10)).groups]

    assert asyncio.run(decide()) == ["one", "two"]
    store.close()


def test_a_step_that_lacks_what_people_rejected_says_so(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.append([group("one", waits=True), group("two", waits=False)], 0)
    store.decide("one", Decision("reject"))
    store.finish()
    stored = StoredGroups(store, 2, {}, WaitingForPeople(None, "roll view there", str))
    with pytest.raises(RolloutError, match=r"has 1 of 2 groups left .1 fresh, 1 were rejected"):
        asyncio.run(stored.next(1, 0))
    store.close()


def test_an_explorer_fills_the_store_no_further_while_its_groups_wait(tmp_path: Path) -> None:
    said = list[str]()
    store, config = FolderStore(tmp_path, Reader()), ExperienceConfig(ahead=1)
    explorer = Explorer(store, config, 2, WaitingForPeople(None, "roll view there", said.append), 60)
    explorer.keep([group("one", waits=True), group("two", waits=False)], 0)

    async def decide() -> None:
        task = asyncio.ensure_future(explorer.wait_for_room())
        await asyncio.sleep(0.3)
        assert not task.done() and said == [
            "2 groups lie in the store, which is enough, 1 wait for review: roll view there"
        ]
        store.decide("one", Decision("reject"))
        await asyncio.wait_for(task, 10)

    asyncio.run(decide())
    explorer.close()
