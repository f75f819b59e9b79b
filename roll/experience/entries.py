"""Groups to what the index keeps of them, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roll.experience.base import Lease
from roll.experience.index import Entry, Indexed
from roll.trajectories.model import Trajectory, TrajectoryGroup


def entries_of(groups: Iterable[TrajectoryGroup], policy_version: int) -> list[Entry]:
    """Return what the index keeps of groups whose members stand in a segment one after another."""
    entries, row = [], 0
    for group in groups:
        members = len(group.trajectories)
        known = (group.group_id, group.tag, group.domain, group.baseline)
        entries.append(Entry(*known, policy_version, first_row=row, members=members))
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
            member.group_id = entry.group_id
    return TrajectoryGroup(entry.group_id, entry.tag, list(members), domain=entry.domain, baseline=entry.baseline)


def lease_of(step: int, found: Sequence[tuple[Indexed, TrajectoryGroup]]) -> Lease:
    """Return the groups of a step as it gets them."""
    return Lease(
        step=step,
        numbers=tuple(indexed.number for indexed, _ in found),
        groups=tuple(group for _, group in found),
        policy_version=tuple(indexed.entry.policy_version for indexed, _ in found),
    )
