"""Workers that live in this process: nothing is copied, and ``breakpoint()`` works."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from roll.distributed.call_watch import CallWatch
from roll.distributed.context import WorkerContext, entered
from roll.distributed.placement import RolePlan
from roll.distributed.profiling import profiled_here
from roll.distributed.worker_group import OnTheWay, WorkerCalls, WorkerSpec, gather_by


class LocalGroup:
    """A :class:`roll.distributed.worker_group.WorkerGroup` whose workers are objects of this process.

    A method that is no coroutine runs at once in the caller's thread, where nothing can interrupt it: its deadline
    counts only with ``threads``. Environment variables of the role are not set, since the process has other roles too.

    Args:
        plan: Role and number of workers. More than one is for workers that do not use ``torch.distributed``.
        spec: How a worker is made.
        rpc_timeout: Seconds that a call may take.
        threads: Run methods that are no coroutines in threads, so that the event loop goes on meanwhile.
        watch: Told of every call.

    Raises:
        Exception: What the constructor of a worker raised, with a note that says which.
    """

    def __init__(
        self,
        plan: RolePlan,
        spec: WorkerSpec,
        *,
        rpc_timeout: float,
        threads: bool = False,
        watch: CallWatch | None = None,
    ) -> None:
        self.role = plan.role
        self._spec = spec
        self._rpc_timeout = rpc_timeout
        self._threads = threads
        self._watch = watch or CallWatch()
        self._contexts = [
            WorkerContext(
                plan.role,
                rank=place.rank,
                size=plan.size,
                local_rank=place.local_rank,
                local_size=place.local_size,
                devices=place.devices,
            )
            for place in plan.workers
        ]
        self._workers = [self._make(rank) for rank in range(plan.size)]

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._contexts)

    def worker(self, rank: int) -> Any:
        """Return the object behind a rank, for code that knows it is in the same process."""
        return self._workers[rank]

    def calls(self) -> WorkerCalls:
        """Return the group itself: whoever calls is in this process too."""
        return self

    async def all(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call ``method`` of every worker with the same arguments; results in order of rank."""
        running = [asyncio.create_task(self._call(rank, method, args)) for rank in range(self.size)]
        return await self._gather(method, running, range(self.size), timeout)

    async def each(self, method: str, args: Sequence[tuple[Any, ...]], *, timeout: float | None = None) -> list[Any]:
        """Call ``method`` of every worker, rank i with ``args[i]``; results in order of rank."""
        require_one_per_worker(self.role, self.size, method, args)
        args = [tuple(each.arrived() if isinstance(each, OnTheWay) else each for each in own) for own in args]
        running = [asyncio.create_task(self._call(rank, method, own)) for rank, own in enumerate(args)]
        return await self._gather(method, running, range(self.size), timeout)

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call ``method`` of one worker."""
        running = [asyncio.create_task(self._call(rank, method, args))]
        return (await self._gather(method, running, [rank], timeout))[0]

    async def restart(self, rank: int | None = None) -> None:
        """Make one worker again, or all."""
        for chosen in range(self.size) if rank is None else [rank]:
            await self._close(chosen)
            self._workers[chosen] = self._make(chosen)

    @property
    def closed(self) -> bool:
        """Whether the workers have ended for good."""
        return not self._workers

    async def close(self) -> None:
        """Let the workers close."""
        for rank in range(len(self._workers)):
            await self._close(rank)
        self._workers = []

    async def _gather(
        self, method: str, running: list[asyncio.Task[Any]], ranks: Sequence[int], timeout: float | None
    ) -> list[Any]:
        who = [f"rank {rank} (this process)" for rank in ranks]
        limit = self._rpc_timeout if timeout is None else timeout
        with self._watch.call(self.role, who, method):
            return await gather_by(running, role=self.role, who=who, what=method, timeout=limit)

    async def _call(self, rank: int, method: str, args: tuple[Any, ...]) -> Any:
        with entered(self._contexts[rank]):
            try:
                function = profiled_here(method) or getattr(self._workers[rank], method)
                if self._threads and not inspect.iscoroutinefunction(function):
                    return await asyncio.to_thread(function, *args)
                result = function(*args)
                return await result if inspect.isawaitable(result) else result
            except Exception as error:
                error.add_note(f"Raised by {self.role} rank {rank} in {method}.")
                raise

    def _make(self, rank: int) -> Any:
        with entered(self._contexts[rank]):
            try:
                return self._spec.cls(*self._spec.args, **self._spec.kwargs)
            except Exception as error:
                error.add_note(f"Raised by {self.role} rank {rank} while it was made.")
                raise

    async def _close(self, rank: int) -> None:
        if hasattr(self._workers[rank], "close"):
            await self._call(rank, "close", ())


def require_one_per_worker(role: str, size: int, method: str, args: Sequence[tuple[Any, ...]]) -> None:
    """Refuse arguments that are not one tuple per worker.

    Raises:
        ValueError: If they are not.
    """
    if len(args) != size:
        raise ValueError(f"{role}.{method}: {len(args)} argument tuples for {size} workers; give one for each.")
