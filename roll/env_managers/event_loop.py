"""Calls of environments that await: in the event loop, without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, cast

from roll.common.threads import CallTimeoutError
from roll.env_managers.session import EnvFailure

T = TypeVar("T")


class EnvEventLoop:
    """Calls environments in the event loop, and awaits what they return; stands where :class:`CallThreads` does.

    Args:
        most: Calls at a time; ``None`` for as many as there are.
    """

    def __init__(self, most: int | None = None) -> None:
        self._places: contextlib.AbstractAsyncContextManager[Any] = (
            contextlib.nullcontext() if most is None else asyncio.Semaphore(most)
        )

    async def call(self, function: Callable[[], T], timeout: float | None = None) -> tuple[T, float]:
        """Call ``function``, and await what it returns.

        Args:
            function: Takes nothing; bind arguments beforehand. What it does before its first ``await`` holds up all.
            timeout: Seconds from when it begins (waiting for a place does not count).

        Returns:
            What it returned, and the seconds it waited for a place.

        Raises:
            CallTimeoutError: If it took longer; it is cancelled.
            BaseException: What ``function`` raised.
        """
        asked = time.monotonic()
        async with self._places:
            waited = time.monotonic() - asked
            result = function()
            if isawaitable(result):
                result = await to_its_end_within(cast(Awaitable[T], result), timeout)
            return result, waited

    def detach(self, function: Callable[[], object]) -> None:
        """Call ``function`` some time; nobody learns its outcome."""
        result = function()
        if isawaitable(result):
            _running.add(task := asyncio.ensure_future(result))
            task.add_done_callback(_running.discard)

    def close(self) -> None:
        """Nothing is held."""


async def to_its_end_within(awaitable: Awaitable[T], timeout: float | None) -> T:
    """Await under a time-out that holds even against what will not be cancelled.

    Raises:
        CallTimeoutError: If it took longer.
        EnvFailure: If it cancelled itself.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        _running.add(task)
        task.add_done_callback(_running.discard)
        raise CallTimeoutError(f"no result after {timeout:g} s")
    if task.cancelled():
        raise EnvFailure("what was awaited raised CancelledError")
    return task.result()


_running: set[asyncio.Future[Any]] = set()
"""Tasks that nobody waits for: the event loop itself holds them weakly."""
