"""Groups that a seed decides, and a store made of plain lists that says what the real ones must do."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from postgres import needs_postgres
from ray_session import ray_store

from roll.experience.base import ExperienceStore, Reader, StoreCounts
from roll.experience.folder import FolderStore
from roll.experience.memory import MemoryStore
from roll.experience.sql import SqlStore
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

Opened = Callable[..., ExperienceStore]
"""Opens the same store again, for a reader with options."""


IN_POSTGRESQL = pytest.param(
    "postgresql", marks=[pytest.mark.processes, pytest.mark.exhaustive, needs_postgres], id="postgresql"
)
IN_SQLITE = pytest.param("sqlite", marks=pytest.mark.exhaustive, id="sqlite")
IN_RAY = [
    pytest.param(kind, marks=[pytest.mark.processes, pytest.mark.exhaustive], id=kind.replace(" ", "-"))
    for kind in ("ray", "ray with a folder")
]
KINDS = ("memory", "folder", IN_SQLITE, IN_POSTGRESQL, *IN_RAY)
"""Every kind of store."""


def opener(kind: str, folder: Path, new_place: Callable[[], str] | None = None) -> Opened:
    """Return what opens a store of a kind, again and again.

    Args:
        kind: The kind.
        folder: Where it may keep files.
        new_place: Makes a database, or a name in Ray, where the kind has one.
    """
    if kind.startswith("ray"):
        assert new_place is not None
        name = f"ray:{new_place()}" + (f":{folder / 'store'}" if kind != "ray" else "")
        return lambda *reader, **options: ray_store(name, Reader(*reader, **options))
    if kind in ("sqlite", "postgresql"):
        address = f"sqlite:///{folder / 'store.sqlite'}" if new_place is None else new_place()
        return lambda *reader, **options: SqlStore(address, Reader(*reader, **options))
    if kind == "folder":
        return lambda *reader, **options: FolderStore(folder / "store", Reader(*reader, **options))
    store = MemoryStore()
    return lambda *reader, **options: store.as_reader(Reader(*reader, **options))


def make_group(number: int, variant: int = 0) -> TrajectoryGroup:
    """Return the group of a number; another variant is another try at the same."""
    draw = random.Random(f"{number} {variant}")
    group_id = f"train-{number:07d}"
    members = [_member(draw, group_id, episode) for episode in range(draw.randrange(4))]
    return TrajectoryGroup(
        group_id, draw.choice("ab"), members, draw.choice(["", "math"]), draw.choice([None, 0.0, draw.random()])
    )


def _member(draw: random.Random, group_id: str, episode: int) -> Trajectory:
    def text() -> str:
        return "".join(draw.choice('ä#\n\0"🙂 a') for _ in range(draw.randrange(6)))

    turns = []
    for _ in range(draw.randrange(3)):
        ids = [draw.randrange(2**31) for _ in range(draw.randrange(9))]
        version = draw.randrange(9)
        turns.append(
            Turn(ids, ids[::-1], [-draw.random() for _ in ids], (version, version + 1), text(), text(),
                 draw.choice([None, text()]), draw.random(), {"env": draw.random(), text(): 0.0}, {text(): 1.0},
                 draw.choice([None, text()]), {"generate": draw.random()}, draw.random() < 0.3)
        )  # fmt: skip
    return Trajectory(
        text(), group_id, episode, draw.randrange(2**64), text(), turns, draw.choice(list(Status)),
        draw.choice([None, 0.0, draw.random()]), draw.choice([None, text()]), text(), draw.choice([None, text()]),
        {"success": 1.0}, [{"role": "user", "content": text(), "name": text()}],
    )  # fmt: skip


class Model:
    """What a store must do, in plain loops over lists."""

    def __init__(self) -> None:
        self.groups: list[tuple[TrajectoryGroup, int]] = []
        self.leases: dict[str, dict[int, list[int]]] = {}
        self.trained: dict[str, int] = {}
        self.finished = False
        self.reviews: dict[int, str] = {}

    def append(self, groups: Sequence[TrajectoryGroup], version: int) -> int:
        before = len(self.groups)
        for group in groups:
            if all(group.group_id != other.group_id for other, _ in self.groups):
                if group.waits:
                    self.reviews[len(self.groups)] = "waiting"
                self.groups.append((replace(group, waits=False), version))
        self.finished = False
        return len(self.groups) - before

    def may_be_given(self, place: int) -> bool:
        return self.reviews.get(place, "approved") == "approved"

    def decide(self, place: int, approves: bool, scores: Sequence[float | None]) -> bool:
        """Return whether a group may be decided about, and do it."""
        if any(place in given for steps in self.leases.values() for given in steps.values()):
            return False
        self.reviews[place] = "approved" if approves else "rejected"
        for member, score in zip(self.groups[place][0].trajectories, scores, strict=False):
            if score is not None and member.turns and not member.status.is_error:
                by = score - (member.score or 0.0)
                member.score = score
                member.turns[-1].reward += by
                member.turns[-1].reward_parts["human_review"] = by
        return True

    def used(self, reader: str) -> Counter[int]:
        return Counter(place for given in self.leases.get(reader, {}).values() for place in given)

    def next_step(self, reader: str) -> int:
        return max([*self.leases.get(reader, {}), self.trained.get(reader, 0)]) + 1

    def last(self, reader: str, place: int) -> float:
        """Return the last step that had the group."""
        return max((step for step, given in self.leases.get(reader, {}).items() if place in given), default=-math.inf)

    def available(self, reader: Reader, step: int) -> list[int]:
        """Return the places of the groups that a step may have."""
        used = self.used(reader.name)
        return [
            place
            for place, (_, version) in enumerate(self.groups)
            if used[place] < reader.uses
            and self.may_be_given(place)
            and (reader.max_age is None or step - 1 - version <= reader.max_age)
            and step - self.last(reader.name, place) > reader.cooldown
        ]

    def wanted(self, reader: Reader, place: int, step: int) -> float:
        """Return how much a group is wanted, from the group itself."""
        group, version = self.groups[place]
        sound = [member for member in group.trajectories if not member.status.is_error]
        mean = statistics.fmean([member.score or 0 for member in sound]) if sound else 0
        used = self.used(reader.name)[place]
        wanted: dict[str, float] = {
            "least_used": -used,
            "linear_decay": version - 2 * used,
            "staleness": version,
            "advantage": statistics.fmean([abs((m.score or 0) - mean) for m in sound]) if sound else 0,
            "success_balanced": -abs((sum(m.success for m in sound) / len(sound) if sound else 0) - 0.5),
        }
        return wanted[getattr(reader.priority, "__name__")]  # noqa: B009

    def best(self, reader: Reader, step: int, places: Iterable[int], most: int) -> list[int]:
        """Return the most wanted of some groups, one after the other."""
        left, chosen, used = set(places), [], self.used(reader.name)
        while left and len(chosen) < most:
            best = max(left, key=lambda place: (self.wanted(reader, place, step), -used[place], -place))
            chosen.append(best)
            left.remove(best)
        return chosen

    def lease(self, reader: Reader, count: int, step: int) -> list[int] | None:
        """Return the places of the groups, from 0."""
        given = self.leases.setdefault(reader.name, {})
        if step not in given:
            there, used = self.available(reader, step), self.used(reader.name)
            if reader.fresh_share is None:
                chosen = self.best(reader, step, there, count)
            else:
                most = count - max(1, round(reader.fresh_share * count))
                again = self.best(reader, step, [place for place in there if used[place]], most)
                fresh = [place for place in there if not used[place]]
                chosen = self.best(reader, step, fresh, count - len(again)) + again
            if len(chosen) < count:
                return None
            given[step] = chosen
        return given[step]

    def commit(self, reader: str, step: int) -> None:
        self.trained[reader] = max(step, self.trained.get(reader, 0))

    def rewind(self, reader: str, step: int) -> None:
        given = self.leases.get(reader, {})
        self.leases[reader] = {each: places for each, places in given.items() if each <= step}
        if reader in self.trained:
            self.trained[reader] = min(step, self.trained[reader])

    def keep_first(self, count: int) -> None:
        self.groups = self.groups[:count]
        self.reviews = {place: state for place, state in self.reviews.items() if place < count}
        for reader, given in self.leases.items():
            first = min((step for step, places in given.items() if max(places) >= count), default=None)
            if first is not None:
                self.rewind(reader, first - 1)

    def counts(self, reader: Reader) -> StoreCounts:
        used, step, name = self.used(reader.name), self.next_step(reader.name), reader.name
        there = self.available(reader, step)
        young = [
            place
            for place, (_, version) in enumerate(self.groups)
            if reader.max_age is None or step - 1 - version <= reader.max_age
        ]
        dropped = sum(
            used[place] < reader.uses and place not in young and self.reviews.get(place) != "rejected"
            for place in range(len(self.groups))
        )
        waiting = sum(self.reviews.get(place) == "waiting" for place in young)
        rejected = sum(state == "rejected" for state in self.reviews.values())
        done = sum(
            len(places) for each, places in self.leases.get(name, {}).items() if each <= self.trained.get(name, 0)
        )
        fresh = sum(not used[place] and self.may_be_given(place) for place in young)
        return StoreCounts(len(self.groups), len(there), fresh, used.total() - done, done, dropped, waiting, rejected)
