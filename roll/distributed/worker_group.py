"""What a pipeline sees of a role: workers to call, all at once, each with its own arguments, or one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from roll.distributed.errors import WorkerDiedError, WorkerTimeoutError

T = TypeVar("T")

DEATH_SECONDS: Final = 5.0
"""How long it may take until the death of a worker is known, after another one that talked to it has failed."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """How the workers of a role are made.

    Attributes:
        cls: A plain class; every worker is one instance. Its public methods are what can be called. Where a method is
            a coroutine, many calls run at once in one event loop; where none is, one call after the other.
            :func:`roll.distributed.context.worker_context` tells an instance its rank. A method ``close`` (plain or
            coroutine), where there is one, is called at the end.
        args: Positional arguments of the class.
        kwargs: Keyword arguments of the class.
        env: Environment variables of the processes; they win over those of the configuration.
    """

    cls: type[Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        """Whether calls run at once: the class has a method that is a coroutine."""
        members = inspect.getmembers(self.cls, inspect.isfunction)
        return any(inspect.iscoroutinefunction(function) for name, function in members if name != "close")


class OnTheWay:
    """An argument of a call that is another value where it arrives. One that is pickled sees to that itself."""

    def arrived(self) -> Any:
        """Return that value, for a worker in this process."""
        raise NotImplementedError


class WorkerCalls(Protocol):
    """Calls to the workers of a role; can be handed to workers of other roles.

    Arguments and results may share memory with their sender and with other ranks: do not write into their tensors in
    place.

    Every call ends: with the results, with the exception that a worker raised (its note says which), with
    :class:`WorkerTimeoutError` after ``timeout`` seconds (``None``: the group's ``rpc_timeout``), or with
    :class:`WorkerDiedError` as soon as the process is gone. Where one of several workers fails, the others are not
    waited for, because they may wait for the failed one: they may still be busy afterwards.
    """

    @property
    def role(self) -> str:
        """Name of the role."""
        ...

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    async def all(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call ``method`` of every worker with the same arguments; results in order of rank."""
        ...

    async def each(self, method: str, args: Sequence[tuple[Any, ...]], *, timeout: float | None = None) -> list[Any]:
        """Call ``method`` of every worker, rank i with ``args[i]``; results in order of rank.

        Raises:
            ValueError: If ``args`` has not one tuple per worker.
        """
        ...

    async def one(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call ``method`` of one worker."""
        ...


class WorkerGroup(WorkerCalls, Protocol):
    """The workers of a role, with their life time."""

    def calls(self) -> WorkerCalls:
        """Return what workers of other roles can be given to call these."""
        ...

    async def restart(self, rank: int | None = None) -> None:
        """Kill and make again one worker, or all; running calls to them fail with :class:`WorkerDiedError`."""
        ...

    async def close(self) -> None:
        """Let the workers close, then end them. Twice is harmless."""
        ...


async def gather_by(
    calls: Iterable[Coroutine[Any, Any, T] | asyncio.Future[T]],
    *,
    role: str,
    who: Sequence[str],
    what: str,
    timeout: float,
) -> list[T]:
    """Wait for all of ``calls``, until the first fails or the time is over.

    Args:
        calls: One call per worker.
        role: Name of the role, for the message.
        who: How each worker is described (``rank 1 (pid 4, node 10.0.0.1)``).
        what: What they were asked to do, for the message.
        timeout: Seconds.

    Returns:
        Results in order.

    Raises:
        WorkerTimeoutError: If some did not answer in time; it names them.
        BaseException: What the first failing call raised; the others are no longer waited for. That of a worker which
            died goes before, because what the others raise comes of it.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    if not tasks:
        return []
    try:
        done, waiting = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        failures = [error for task in tasks if task in done and (error := task.exception()) is not None]
        if failures:
            raise await _cause(failures, waiting)
        if waiting:
            silent = [who[i] for i, task in enumerate(tasks) if task in waiting]
            raise WorkerTimeoutError(role, silent, what, timeout)
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()


async def _cause(failures: list[BaseException], waiting: set[asyncio.Task[T]]) -> BaseException:
    """Return the failure that explains the others.

    When the process of a rank dies, its peers may find their connections closed, and say so, before its death is known.
    """
    deadline = asyncio.get_running_loop().time() + DEATH_SECONDS
    first = failures[0]
    while not any(isinstance(error, WorkerDiedError) for error in failures):
        left = deadline - asyncio.get_running_loop().time()
        if not isinstance(first, RuntimeError) or not waiting or left <= 0:
            return first
        done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        failures = [error for task in done if (error := task.exception()) is not None]
    died = next(error for error in failures if isinstance(error, WorkerDiedError))
    if died is not first:
        died.__cause__ = first
    return died
