"""The actor on each machine from which groups are appended: they lie in the object store of that machine."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError

from roll.distributed.ray_host import Failure
from roll.distributed.transport import Packed
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

    The program that appends cannot own them. It ends before they are learned from, and may be killed while it appends:
    so references to them do not pass through it either. Ray learns from who passes a reference on that somebody else
    has it, and of who is killed meanwhile it does not; it would then throw away what the store has taken.

    Args:
        host: The actor with the index.
    """

    def __init__(self, host: Any) -> None:
        self._host = host

    def keep(self, args: Packed, sealed: Sequence[Sealed]) -> int | Failure | None:
        """Put groups into the object store of this machine, and append them.

        Args:
            args: Of ``StoreHost.append``.
            sealed: The groups.

        Returns:
            What that returned; ``None`` if the host is not there.
        """
        try:
            answer: int | Failure = ray.get(self._host.append.remote(args, [ray.put(each) for each in sealed]))
        except RayActorError:
            return None
        return answer
