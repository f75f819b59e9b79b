"""What must not be broken off: work that runs to its end, and SIGTERM that stops a run as Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


async def to_its_end(call: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine that must not stop half-way: a cancellation that comes meanwhile counts when it is done."""
    task = asyncio.ensure_future(call())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            await task
        raise


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which a cluster sends before it takes a machine away, stop this task as Ctrl-C does."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
