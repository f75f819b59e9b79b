"""Plays the members of a group, with spare ones in place of those that break or hang."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from roll.trajectories.model import Trajectory

PlayMember = Callable[[int, bool], Awaitable[Trajectory]]
"""Plays the member of a number, greedily or not."""

OnMember = Callable[[], None]
"""Called when a member is finished; the greedy one does not count."""


@dataclass(frozen=True, slots=True)
class Spares:
    """Members beyond the size of a group.

    Which members are trained on is decided by their numbers, never by who finishes first: the sound ones with the
    smallest numbers. A spare takes part only where a member before it broke, so short episodes have no advantage and
    the lengths trained on are distributed as those sampled.

    Attributes:
        count: Spare members per group (``group_size_redundancy``).
        straggler_seconds: How long members may go on after as many sound ones as the group needs are finished; those
            that take longer make room for spares. This *does* leave out long episodes, so it is for environments that
            hang, and to be set far above what an honest episode takes. ``None`` waits for all.
    """

    count: int = 0
    straggler_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"group_size_redundancy={self.count}: must be at least 0")
        if self.straggler_seconds is not None and not self.straggler_seconds > 0:
            raise ValueError(f"straggler_seconds={self.straggler_seconds}: must be greater than 0, or None to wait")


@dataclass(frozen=True, slots=True)
class Played:
    """The members of a group.

    Attributes:
        members: As many as the group needs, by number: the sound ones with the smallest numbers. Where too few are
            sound, broken ones make up the number.
        greedy: The greedy member, where there is one.
    """

    members: list[Trajectory]
    greedy: Trajectory | None = None

    @property
    def baseline(self) -> float | None:
        """The score of the greedy member; ``None`` where there is none, or where it broke or was aborted.

        What such a member earned until then is not what the greedy policy earns.
        """
        return None if self.greedy is None or self.greedy.status.is_error else self.greedy.score


async def play_group(
    play: PlayMember,
    size: int,
    spares: Spares,
    with_baseline: bool = False,
    counts: Counter[str] | None = None,
    on_member: OnMember | None = None,
) -> Played:
    """Play the members of a group at the same time.

    Args:
        play: Plays one.
        size: Members that the group needs.
        spares: Those beyond.
        with_baseline: Whether there is a greedy member; its number comes after all others.
        counts: Is told how many members were ``replaced`` by spares because they broke, and how many ``stragglers``
            were given up.
        on_member: Told after every member.

    Raises:
        Exception: What ``play`` raises first; the other members are cancelled.
    """
    last = size + spares.count
    members = [asyncio.ensure_future(play(number, False)) for number in range(last)]
    greedy = [asyncio.ensure_future(play(last, True))] if with_baseline else []
    if on_member is not None:
        for member in members:
            member.add_done_callback(partial(_tell, on_member))
    started: list[asyncio.Future[Any]] = [*members, *greedy]
    try:
        if not spares.count:
            played = await asyncio.gather(*members, *greedy)
            return Played(played[:size], played[size] if greedy else None)
        choosing = asyncio.ensure_future(_choose(members, size, spares, Counter() if counts is None else counts))
        started.append(choosing)
        await asyncio.gather(choosing, *greedy)
        return Played(choosing.result(), greedy[0].result() if greedy else None)
    finally:
        await cancel(started)


def _tell(on_member: OnMember, member: asyncio.Future[Any]) -> None:
    if not member.cancelled() and member.exception() is None:
        on_member()


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Stop tasks that are no longer needed and wait until they are gone; finished ones are left alone."""
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)


async def _choose(
    tasks: Sequence[asyncio.Future[Trajectory]], size: int, spares: Spares, counts: Counter[str]
) -> list[Trajectory]:
    """Wait until it is clear which members make up the group."""
    clock, until = asyncio.get_running_loop().time, None
    while True:
        chosen = _sound(tasks, size, wait_for_earlier=True)
        running = [task for task in tasks if not task.done()]
        if len(chosen) == size:
            counts["replaced"] += sum(member.episode >= size for member in chosen)
            return chosen
        if not running:
            break
        finished = _sound(tasks, size, wait_for_earlier=False)
        if len(finished) == size and spares.straggler_seconds is not None:
            until = until or clock() + spares.straggler_seconds
            if clock() >= until:
                counts["stragglers"] += sum(not task.done() for task in tasks[: finished[-1].episode])
                return finished
        patience = None if until is None else until - clock()
        await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    broken = [task.result() for task in tasks if task.result().status.is_error]
    return sorted(chosen + broken[: size - len(chosen)], key=lambda member: member.episode)


def _sound(tasks: Iterable[asyncio.Future[Trajectory]], size: int, wait_for_earlier: bool) -> list[Trajectory]:
    """Return the sound members with the smallest numbers; with ``wait_for_earlier`` only those before the first gap."""
    found: list[Trajectory] = []
    for task in tasks:
        if len(found) == size:
            break
        if task.done():
            member = task.result()
            found += [] if member.status.is_error else [member]
        elif wait_for_earlier:
            break
    return found
