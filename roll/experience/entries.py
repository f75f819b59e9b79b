"""What the index of an experience store keeps of groups, from them and back to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from roll.experience.base import Lease
from roll.trajectories.model import Trajectory, TrajectoryGroup, group_of_member


@dataclass(frozen=True, slots=True)
class Scores:
    """How the sound members of a group did; zeros where there is none.

    Attributes:
        mean: Mean of their scores.
        spread: Mean distance of their scores from that.
        success: Share of them that succeeded.
    """

    mean: float = 0.0
    spread: float = 0.0
    success: float = 0.0

    @classmethod
    def of(cls, members: Sequence[tuple[float, bool]]) -> Scores:
        """Return how members did of whom score and success are given."""
        if not members:
            return cls()
        scores = [score for score, _ in members]
        mean = sum(scores) / len(scores)
        spread = sum(abs(score - mean) for score in scores) / len(scores)
        return cls(mean, spread, sum(success for _, success in members) / len(members))


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index keeps of a group that comes in.

    Attributes:
        group_id: Its id in the store.
        tag: Its tag.
        domain: Its domain.
        baseline: Its baseline.
        policy_version: The weights that sampled it.
        first_row: The row of its first member in the segment.
        members: How many rows from there are its members.
        scores: How they did.
        waits: Whether it waits until a person has looked at it.
    """

    group_id: str
    tag: str
    domain: str
    baseline: float | None
    policy_version: int
    first_row: int
    members: int
    scores: Scores = field(default_factory=Scores)
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A file with the members of groups.

    Attributes:
        path: Within the folder of the store, or absolute.
        digest: Of its content.
        prefix: What the ids of its groups have in the store before those in the file.
    """

    path: str
    digest: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A group as the index knows it.

    Attributes:
        number: Its number in the store; they grow in the order in which groups came in.
        entry: What is kept of it.
        segment: Where its members are; ``None`` where they are in memory.
        uses: How often it was given out before the step that it is leased to.
        replaced: Scores of its members that a person gave them; see ``Decision``.
    """

    number: int
    entry: Entry
    segment: Segment | None
    uses: int
    replaced: tuple[float | None, ...] = ()


def first_of_each(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return the first group of each id, in their order."""
    first: dict[str, TrajectoryGroup] = {}
    for group in groups:
        first.setdefault(group.group_id, group)
    return list(first.values())


def entries_of(groups: Iterable[TrajectoryGroup], policy_version: int) -> list[Entry]:
    """Return what the index keeps of groups whose members stand in a segment one after another."""
    entries, row = [], 0
    for group in groups:
        members = len(group.trajectories)
        known = (group.group_id, group.tag, group.domain, group.baseline)
        sound = [(each.score or 0.0, each.success) for each in group.trajectories if not each.status.is_error]
        entries.append(Entry(*known, policy_version, row, members, Scores.of(sound), group.waits))
        row += members
    return entries


def group_of(indexed: Indexed, members: Sequence[Trajectory]) -> TrajectoryGroup:
    """Return a group of the store.

    Args:
        indexed: What the index keeps of it.
        members: What its segment has. Where that says so, they get the group's id in the store.
    """
    entry = indexed.entry
    if indexed.segment is not None and indexed.segment.prefix:
        for member in members:
            member.group_id = group_of_member(member.group_id, entry.group_id)
    return TrajectoryGroup(entry.group_id, entry.tag, list(members), domain=entry.domain, baseline=entry.baseline)


def lease_of(step: int, found: Sequence[tuple[Indexed, TrajectoryGroup]]) -> Lease:
    """Return the groups of a step as it gets them."""
    return Lease(
        step=step,
        numbers=tuple(indexed.number for indexed, _ in found),
        groups=tuple(group for _, group in found),
        policy_version=tuple(indexed.entry.policy_version for indexed, _ in found),
        uses=tuple(indexed.uses for indexed, _ in found),
    )
