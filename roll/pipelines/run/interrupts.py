"""Ctrl-C and SIGTERM: they cancel a run, wherever it was started, and what must not be broken off ends first."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


def runner() -> Callable[[Coroutine[Any, Any, Result]], Result]:
    """Return what runs a coroutine to its end: ``asyncio.run``, but in a notebook :func:`run_beside`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run
    return run_beside


def run_beside(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end where this thread has a running event loop.

    It runs in a thread of its own, with a loop of its own, while this one waits. An interrupt cancels it, and it may
    still save what there is; a second interrupt no longer waits for that.

    Raises:
        asyncio.CancelledError: After an interrupt, if it stopped.
        KeyboardInterrupt: After the second interrupt.
    """
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    result: Future[Result] = Future()

    async def main() -> Result:
        task = asyncio.current_task()
        assert task is not None  # asyncio.run makes one
        running.set_result((asyncio.get_running_loop(), task))
        return await work

    def run() -> None:
        try:
            result.set_result(asyncio.run(main()))
        except BaseException as error:  # handed to the thread that waits
            result.set_exception(error)

    # The context says to whom output belongs: a notebook finds the cell by it.
    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="roll-run", daemon=True).start()
    try:
        return result.result()
    except KeyboardInterrupt:
        if not result.done():
            loop, task = running.result()
            loop.call_soon_threadsafe(task.cancel)
        return result.result()


async def to_its_end(task: asyncio.Task[Result]) -> Result:
    """Wait for what must not stop half-way: a cancellation that comes meanwhile counts when it is done."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            await task
        raise


def stopped_by_somebody() -> bool:
    """Whether this task was told to stop. A cancellation may also leak from a part that was itself given up."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
