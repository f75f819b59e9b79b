"""Workers that any piece of work can go to: environments, graders."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from roll.distributed import LocalGroup, WorkerDiedError, WorkerGroup, WorkerTimeoutError

MOST_ATTEMPTS: Final = 4
"""How often a piece of work is begun before its failure is that of the run."""

PATIENCE: Final = 120.0
"""Seconds that a worker which died may take to be made again, and one that is asked to say that it lives."""


class WorkerPool:
    """Gives work to the worker that has least to do. One that dies is made again, and its work is done again.

    Work must be a function of its arguments (an episode of a seed, the grade of a response), so that doing it again
    gives the same.

    Args:
        group: The workers.
        patience: Seconds that making a worker again may take.
    """

    def __init__(self, group: WorkerGroup, patience: float = PATIENCE) -> None:
        self.group = group
        self.restarts = 0
        self._patience = patience
        self._running = [0] * group.size
        self._by_work = [(0, rank) for rank in range(group.size)]
        self._generation = [0] * group.size
        self._reviving = [asyncio.Lock() for _ in range(group.size)]

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        """Have one worker do a piece of work; what it returns is to be awaited.

        A worker of this process is called without a detour: the order in which coroutines run is part of what makes a
        run reproducible.

        Raises:
            WorkerError: If it failed again and again, or the worker cannot be made again.
            Exception: What the worker raised.
        """
        if isinstance(self.group, LocalGroup):
            work: Awaitable[Any] = getattr(self.group.worker(0), method)(*args)
            return work
        return self._call_elsewhere(method, *args)

    async def _call_elsewhere(self, method: str, *args: Any) -> Any:
        """Have the process that has least to do do it, and another one where it dies."""
        attempt = 1
        while True:
            rank = self._least_busy()
            generation = self._generation[rank]
            self._count(rank, 1)
            try:
                return await self.group.one(rank, method, *args)
            except (WorkerDiedError, WorkerTimeoutError):
                if attempt == MOST_ATTEMPTS:
                    raise
            finally:
                self._count(rank, -1)
            attempt += 1
            await self._revive(rank, generation)

    async def tell(self, method: str, *args: Any) -> None:
        """Call every worker. One that is dead or hangs is passed over: it knows as much as it needs when made again."""

        async def one(rank: int) -> None:
            with suppress(WorkerDiedError, WorkerTimeoutError):
                await self.group.one(rank, method, *args, timeout=self._patience)

        await asyncio.gather(*(one(rank) for rank in range(self.group.size)))

    async def _revive(self, rank: int, generation: int) -> None:
        """Make a worker again, once for all whose work it had."""
        async with self._reviving[rank]:
            if self._generation[rank] != generation:
                return
            await restart(self.group, rank, self._patience)
            self._generation[rank] += 1
            self.restarts += 1

    def _least_busy(self) -> int:
        """Return the worker with the least to do, of several the first; a call costs the logarithm of their number."""
        while self._by_work[0][0] != self._running[self._by_work[0][1]]:
            heapq.heappop(self._by_work)  # what was noted before it got more or less to do
        return self._by_work[0][1]

    def _count(self, rank: int, change: int) -> None:
        self._running[rank] += change
        heapq.heappush(self._by_work, (self._running[rank], rank))
        if len(self._by_work) > 4 * self.group.size + 64:
            self._by_work = [(running, each) for each, running in enumerate(self._running)]
            heapq.heapify(self._by_work)


async def restart(group: WorkerGroup, rank: int, patience: float) -> None:
    """Make a worker again.

    Raises:
        WorkerTimeoutError: If that takes longer than ``patience`` seconds, as it does where its machine is gone.
    """
    try:
        async with asyncio.timeout(patience):
            await group.restart(rank)
    except TimeoutError as error:
        raise WorkerTimeoutError(group.role, [f"rank {rank}"], "to be made again", patience) from error
