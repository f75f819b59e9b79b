"""Groups that a seed decides, and a store made of plain lists that says what the real ones must do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from roll.experience.base import ExperienceStore, StoreCounts
from roll.experience.folder import FolderStore
from roll.experience.memory import MemoryStore
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

Opened = Callable[..., ExperienceStore]
"""Opens the same store again, for a reader with options."""


def opener(kind: str, folder: Path) -> Opened:
    """Return what opens a store of a kind, again and again."""
    if kind == "folder":
        return lambda *reader, **options: FolderStore(folder / "store", *reader, **options)
    return MemoryStore().as_reader


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

    def append(self, groups: Sequence[TrajectoryGroup], version: int) -> int:
        before = len(self.groups)
        for group in groups:
            if all(group.group_id != other.group_id for other, _ in self.groups):
                self.groups.append((group, version))
        self.finished = False
        return len(self.groups) - before

    def used(self, reader: str) -> Counter[int]:
        return Counter(place for given in self.leases.get(reader, {}).values() for place in given)

    def next_step(self, reader: str) -> int:
        return max([*self.leases.get(reader, {}), self.trained.get(reader, 0)]) + 1

    def lease(self, reader: str, uses: int, max_age: int | None, count: int, step: int) -> list[int] | None:
        """Return the places of the groups, from 0."""
        given = self.leases.setdefault(reader, {})
        if step not in given:
            used, chosen = self.used(reader), []
            for round_ in range(uses):
                for place, (_, version) in enumerate(self.groups):
                    young = max_age is None or step - 1 - version <= max_age
                    if used[place] == round_ and young and len(chosen) < count:
                        chosen.append(place)
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

    def counts(self, reader: str, uses: int, max_age: int | None) -> StoreCounts:
        used, step = self.used(reader), self.next_step(reader)
        available = dropped = 0
        for place, (_, version) in enumerate(self.groups):
            if used[place] < uses:
                too_old = max_age is not None and version < step - 1 - max_age
                dropped += too_old
                available += not too_old
        done = sum(
            len(places) for each, places in self.leases.get(reader, {}).items() if each <= self.trained.get(reader, 0)
        )
        return StoreCounts(len(self.groups), available, used.total() - done, done, dropped)
