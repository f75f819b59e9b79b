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
        self._beside: list[ActivityBeside] = []

    @property
    def outside(self) -> int:
        """Episodes at work outside the engine now."""
        return self._outside

    @property
    def changes(self) -> int:
        """How often that number changed."""
        return self._changes

    def beside(self) -> Activity:
        """Return what a second engine waits for, whose requests are work outside of the first."""
        self._beside.append(ActivityBeside(self))
        return self._beside[-1]

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
        self._changed()

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
        seen = self.changes
        while quiet < _SETTLE_TICKS:
            if self.outside:
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
                quiet = 0
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.changes == seen else 0
            seen = self.changes

    def _changed(self) -> None:
        """Wake those who wait for quiet, if it is quiet now."""
        if self.outside == 0:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                # A waiter may have been cancelled, or belong to an event loop that ended.
                if not waiter.done() and not waiter.get_loop().is_closed():
                    waiter.set_result(None)
        for other in self._beside:
            other._changed()


class ActivityBeside(Activity):
    """Tells a second engine when it may form a batch, beside the engine of an :class:`Activity`.

    Two engines that formed batches at the same time would race: which requests of one share a batch would depend on
    how long the other took. So what asks this engine counts as work outside the first, which waits, and this one
    forms a batch when everybody who works outside the first asks it.

    Args:
        first: That of the first engine.
    """

    def __init__(self, first: Activity) -> None:
        super().__init__()
        self._first = first
        self._asking = 0

    @property
    def outside(self) -> int:
        """Episodes at work outside both engines now."""
        return self._first.outside - self._asking

    @property
    def changes(self) -> int:
        """How often the number of those changed."""
        return self._first.changes + self._changes

    def enter_env(self) -> None:
        """Report that this engine answered an episode."""
        self._asking -= 1
        self._changes += 1

    def leave_env(self) -> None:
        """Report that an episode asks this engine."""
        self._asking += 1
        self._changes += 1
        self._changed()

    @contextmanager
    def outside_engine(self) -> Iterator[None]:
        """Report that one episode works outside the engines while the block runs."""
        with self._first.outside_engine():
            yield


class NoActivity(Activity):
    """For runs whose engines wait for nobody: counts nothing, and it is always quiet."""

    def enter_env(self) -> None:
        """Nobody needs to know."""

    def leave_env(self) -> None:
        """Nobody needs to know."""

    def beside(self) -> Activity:
        """Return the same for another engine."""
        return self

    async def quiescent(self) -> None:
        """Return at once."""
