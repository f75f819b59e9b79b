"""The actor on each machine from which groups are appended: they lie in the object store of that machine."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from roll.trajectories.model import TrajectoryGroup

Sealed = np.ndarray[Any, np.dtype[np.uint8]]
"""A group as bytes. Ray hands an array on as it lies in shared memory, and bytes as a copy."""


def seal(group: TrajectoryGroup) -> Sealed:
    """Return a group as bytes."""
    return np.frombuffer(pickle.dumps(group, pickle.HIGHEST_PROTOCOL), np.uint8)


def unseal(sealed: Sealed) -> TrajectoryGroup:
    """Return the group of some bytes."""
    group: TrajectoryGroup = pickle.loads(sealed.data)
    return group


class Keeper:
    """Owns groups: they are there while it lives, and somebody refers to them.

    The program that appends cannot own them. It ends before they are learned from.
    """

    def keep(self, sealed: Sequence[Sealed]) -> list[ray.ObjectRef[Sealed]]:
        """Put groups into the object store of this machine."""
        return [ray.put(each) for each in sealed]
