"""The time of a verdict, and limits that outlive an event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Clock:
    """The time of one verdict. It stands still while the verdict waits for a place among others.

    Args:
        limit: Seconds.
        expired: Called in the loop when they are over.
    """

    def __init__(self, limit: float, expired: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = limit
        self._expired = expired
        self._waits = 0
        self._run()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        running = self._handle is not None
        return max(0.0, self._left - (self._loop.time() - self._since if running else 0.0))

    def _run(self) -> None:
        self._since = self._loop.time()
        self._handle: asyncio.TimerHandle | None = self._loop.call_later(self._left, self._expired)

    def stop(self) -> None:
        """Let it stand still; it must be continued as often as it was stopped."""
        self._left = self.left
        self._waits += 1
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def go_on(self) -> None:
        """Let it run again."""
        self._waits -= 1
        if not self._waits:
            self._run()


_CLOCK: contextvars.ContextVar[Clock | None] = contextvars.ContextVar("verdict_clock", default=None)


@contextmanager
def timed_by(clock: Clock) -> Iterator[None]:
    """Make ``clock`` the one of the tasks that start inside."""
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """Stop the clock of the verdict at work, if there is one."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()


def time_left(otherwise: float = 0.0) -> float:
    """Return the seconds that the verdict at work has left; ``otherwise`` where nobody limits it."""
    clock = _CLOCK.get()
    return otherwise if clock is None else clock.left


class PerLoop(Generic[T]):
    """Makes one value per event loop: semaphores and connections cannot move from one loop to the next."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._value: T | None = None

    def get(self) -> T:
        """Return the value of the running loop; one of an earlier loop is forgotten."""
        loop = asyncio.get_running_loop()
        if self._value is None or self._loop is not loop:
            self._loop, self._value = loop, self._make()
        return self._value

    def take(self) -> T | None:
        """Return the value if it belongs to the running loop, and forget it."""
        value = self._value if self._loop is asyncio.get_running_loop() else None
        self._loop = self._value = None
        return value


class ConcurrencyLimit:
    """At most so many at a time; 0 is no limit. Works in one event loop after another."""

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"a limit of {limit}: must be 0 (none) or more")
        self._limit = limit
        self._slots = PerLoop(lambda: asyncio.Semaphore(limit))

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free slot and hold it."""
        if not self._limit:
            yield
            return
        slots = self._slots.get()
        with waiting():
            await slots.acquire()
        try:
            yield
        finally:
            slots.release()
