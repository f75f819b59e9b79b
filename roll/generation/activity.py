"""Tells a generation engine when every episode has said what it wants next.

A reproducible run must not let the order in which env threads happen to finish decide which requests share a batch,
because floating-point sums depend on the batch. So episodes report here when they work outside the engine, and the
engine waits for :meth:`Activity.quiescent` before it forms a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

_SETTLE_TICKS = 8
"""Turns of the event loop without a change that count as quiet. A finished completion needs a few turns to travel
through wrappers such as ``asyncio.wait_for`` before its episode reports ``enter_env``."""


class Activity:
    """Counts the episodes that work outside the engine (environment, rendering, reward).

    Use it from the thread of the event loop only::

        with activity.outside_engine():
            observation = await asyncio.to_thread(env.step, action)
        completion = await engine.generate(request)   # no other await between the two
    """

    def __init__(self) -> None:
        self._outside = 0
        self._changes = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def outside(self) -> int:
        """Episodes at work outside the engine now."""
        return self._outside

    def enter_env(self) -> None:
        """Report that one episode started to work outside the engine."""
        self._outside += 1
        self._changes += 1

    def leave_env(self) -> None:
        """Report that one episode's work outside ended: it asks the engine now, or it is over.

        Raises:
            RuntimeError: If more episodes left than entered.
        """
        if self._outside == 0:
            raise RuntimeError("Activity.leave_env() without a matching enter_env(); call them in pairs (try/finally)")
        self._outside -= 1
        self._changes += 1
        if self._outside == 0:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                # A waiter may have been cancelled, or belong to an event loop that ended.
                if not waiter.done() and not waiter.get_loop().is_closed():
                    waiter.set_result(None)

    @contextmanager
    def outside_engine(self) -> Iterator[None]:
        """Report that one episode works outside the engine while the block runs."""
        self.enter_env()
        try:
            yield
        finally:
            self.leave_env()

    async def quiescent(self) -> None:
        """Return once no episode is executing outside the engine and none is about to."""
        quiet = 0
        seen = self._changes
        while quiet < _SETTLE_TICKS:
            if self._outside:
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
                quiet = 0
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._changes == seen else 0
            seen = self._changes


class NoActivity(Activity):
    """For runs whose engines wait for nobody: counts nothing, and it is always quiet."""

    def enter_env(self) -> None:
        """Nobody needs to know."""

    def leave_env(self) -> None:
        """Nobody needs to know."""

    async def quiescent(self) -> None:
        """Return at once."""
