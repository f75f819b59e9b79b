"""Checks across the trajectories of a group."""

from __future__ import annotations

from collections.abc import Iterable

from roll.trajectories.model import Trajectory


class GroupMismatchError(ValueError):
    """Members of a group began in different states."""


def check_group(trajectories: Iterable[Trajectory]) -> None:
    """Check that all members of a group began in the same state.

    Members that failed before their first observation are left out.

    Raises:
        GroupMismatchError: If first observations differ, so that comparing the members' scores would mean nothing.
    """
    started = [trajectory for trajectory in trajectories if trajectory.initial_hash]
    hashes = sorted({trajectory.initial_hash for trajectory in started})
    if len(hashes) < 2:
        return
    first = started[0]
    other = next(each for each in started if each.initial_hash != first.initial_hash)
    raise GroupMismatchError(
        f"{first.tag}: group {first.group_id!r} began in {len(hashes)} different states (episode {first.episode} with "
        f"seed {first.seed}: {first.initial_hash}, episode {other.episode} with seed {other.seed}: "
        f"{other.initial_hash}). reset(seed=...) must fix the first observation: draw from self.np_random only, and "
        "call super().reset(seed=seed) first."
    )
