"""Episodes that failed through no fault of the policy, played again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from roll.trajectories.model import Status, Trajectory

LONGEST_WAIT = 300.0
"""Seconds between two attempts, however many there were."""

_TRIED_AGAIN = frozenset({Status.ERROR_UNAVAILABLE, Status.ERROR_TIMEOUT})


@dataclass(frozen=True, slots=True)
class Retries:
    """How often an episode is tried again.

    Attributes:
        most: Attempts after the first.
        wait: Seconds before the first of them; doubled before each further one, up to :data:`LONGEST_WAIT`.
        crashes: Whether an episode that ended with ``error_env`` is among those.
    """

    most: int = 0
    wait: float = 1.0
    crashes: bool = False


async def play_again(trajectory: Trajectory, play: Callable[[], Awaitable[Trajectory]], retries: Retries) -> Trajectory:
    """Play an episode again from its beginning while it ends with a time-out or with something that is not there.

    Every attempt has the same level and, since noise is keyed by what and not by when, the same samples: an attempt
    that is not disturbed gives the episode that an undisturbed first one would have given. With new samples, long
    episodes, which have more occasions to fail, would be replaced by short ones. An environment that raises for any
    other reason would raise again, and is not tried again; a program of somebody else may not crash a second time.

    Args:
        trajectory: The first attempt.
        play: Plays the episode from its beginning.
        retries: How often.

    Returns:
        The first attempt that did not fail so, else the last; ``retries`` says how many came before it.
    """
    tried_again = _TRIED_AGAIN | {Status.ERROR_ENV} if retries.crashes else _TRIED_AGAIN
    for number in range(retries.most):
        if trajectory.status not in tried_again:
            break
        await asyncio.sleep(min(retries.wait * 2**number, LONGEST_WAIT))
        trajectory = await play()
        trajectory.retries = number + 1
    return trajectory
