"""Calls that travel together: many to a worker in one trip, and many answers in one trip back.

A call to another process costs the better part of a millisecond of processor time, whatever it carries. Thousands of
small ones at the same time (episodes, completions, grades) therefore share trips: those that come up while a trip is
under way go with the next, so that under load the trips grow instead of their number.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from roll.distributed.transport import Packed

POLL_SECONDS: Final = 10.0
"""How long a worker holds back an empty answer to a caller who asks for answers."""

GATHER_SECONDS: Final = 0.005
"""How long the first answer of a trip waits for others, where other calls of the caller are running."""

MOST_LETTERS: Final = 16
"""How many calls a trip gathers while an earlier one is under way: those of a busy process would else wait for all of
its work to be done."""

SLACK_SECONDS: Final = 10.0
"""How much longer than a call may take a worker may say nothing, until it counts as hung."""

Answer = Any
"""What a worker's host answers to a call, or ``None`` if the call was cancelled there."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A call on its way.

    Attributes:
        number: Tells it from other calls of the same caller.
        method: What is called.
        args: Its arguments.
    """

    number: int
    method: str
    args: Packed


@dataclass
class _Box:
    """What a worker does for one caller, and what is finished.

    Attributes:
        running: Calls by number.
        finished: Answers that nobody has fetched yet.
        arrived: Set when there are some.
    """

    running: dict[int, asyncio.Task[Answer]] = field(default_factory=dict)
    finished: list[tuple[int, Answer]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Mailroom:
    """The worker's end.

    Args:
        run: Runs a method with packed arguments; its exceptions are answers, only cancelling it raises.
    """

    def __init__(self, run: Callable[[str, Packed], Awaitable[Answer]]) -> None:
        self._run = run
        self._boxes: dict[str, _Box] = {}

    def deliver(self, caller: str, letters: Sequence[Letter], cancelled: Sequence[int]) -> None:
        """Begin calls of a caller in their order, and cancel earlier ones."""
        box = self._boxes.setdefault(caller, _Box())
        for letter in letters:
            task = asyncio.ensure_future(self._run(letter.method, letter.args))
            box.running[letter.number] = task
            task.add_done_callback(partial(_finish, box, letter.number))
        for number in cancelled:
            # Nobody waits for its answer any more.
            running = box.running.pop(number, None)
            if running is not None:
                running.cancel()

    async def collect(self, caller: str) -> list[tuple[int, Answer]]:
        """Return the answers to a caller as soon as there are some, or none after :data:`POLL_SECONDS`."""
        box = self._boxes.setdefault(caller, _Box())
        if not box.finished:
            box.arrived.clear()
            try:
                await asyncio.wait_for(box.arrived.wait(), POLL_SECONDS)
            except TimeoutError:
                return []
            if box.running:
                await asyncio.sleep(GATHER_SECONDS)
        finished, box.finished = box.finished, []
        return finished

    def close(self) -> None:
        """Cancel what is running; whoever waits for it is told."""
        for box in self._boxes.values():
            for task in box.running.values():
                task.cancel()


def _finish(box: _Box, number: int, task: asyncio.Task[Answer]) -> None:
    if box.running.pop(number, None) is not None:
        box.finished.append((number, None if task.cancelled() else task.result()))
        box.arrived.set()


class SilentWorkerError(Exception):
    """A worker said nothing for so long that it must have hung."""


class Post:
    """The caller's end, for one worker and one event loop. After a failure it is :attr:`closed`; make another one.

    Args:
        actor: The worker's host (:class:`roll.distributed.ray_host.AsyncHost`).
        name: The worker's name in Ray's timeline.
        timeout: Seconds in which the worker has to say something, beyond those it holds back empty answers.
    """

    def __init__(self, actor: Any, name: str, timeout: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._actor = actor
        self._name = name
        self._timeout = timeout
        self._caller = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._outgoing: dict[int, Letter] = {}
        self._cancelled: list[int] = []
        self._sender: asyncio.Task[None] | None = None
        self._collector: asyncio.Task[None] | None = None

    async def call(self, method: str, args: Packed) -> Answer:
        """Return what the worker's host answers. A call that is cancelled here is cancelled there, or never begins.

        Raises:
            SilentWorkerError: The worker has hung.
            ray.exceptions.RayError: It cannot be reached.
        """
        number = next(self._numbers)
        future: asyncio.Future[Answer] = self.loop.create_future()
        self._waiting[number] = future
        self._outgoing[number] = Letter(number, method, args)
        if len(self._outgoing) >= MOST_LETTERS:
            self._begin_trip()
        elif self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())
        if self._collector is None or self._collector.done():
            self._collector = asyncio.ensure_future(self._collect())
        try:
            return await future
        except asyncio.CancelledError:
            if self._outgoing.pop(number, None) is None:
                self._cancel(number)
            raise
        finally:
            self._waiting.pop(number, None)

    def close(self, error: Exception) -> None:
        """Fail all calls with ``error``."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        self._outgoing, self._cancelled = {}, []
        for task in (self._sender, self._collector):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _cancel(self, number: int) -> None:
        if self.closed:
            return
        self._cancelled.append(number)
        if self._sender is None or self._sender.done():
            # Cancelled calls often come many at a time, and at the end of an event loop, when no task can be begun.
            self.loop.call_soon(self._send_cancelled)

    def _send_cancelled(self) -> None:
        if self._cancelled and not self.closed:
            self._begin_trip()

    async def _send(self) -> None:
        while (self._outgoing or self._cancelled) and not self.closed:
            await self._wait(self._begin_trip(), self._timeout)

    def _begin_trip(self) -> Any:
        """Send what there is. Trips arrive in their order; that one arrived is seen from those who come later."""
        letters, self._outgoing = list(self._outgoing.values()), {}
        cancelled, self._cancelled = self._cancelled, []
        methods = "+".join(dict.fromkeys(letter.method for letter in letters)) or "cancel"
        deliver = self._actor.deliver.options(name=f"{self._name}.{methods}")
        return deliver.remote(self._caller, letters, cancelled)

    async def _collect(self) -> None:
        limit = POLL_SECONDS + self._timeout
        while self._waiting and not self.closed:
            for number, answer in await self._wait(self._actor.collect.remote(self._caller), limit) or ():
                future = self._waiting.get(number)
                if future is not None and not future.done():
                    future.set_result(answer)

    async def _wait(self, trip: Any, limit: float) -> Any:
        """Return what a trip brings; if it fails, so do all calls, because nobody knows which of them it carried."""
        try:
            async with asyncio.timeout(limit + SLACK_SECONDS):
                return await trip
        except TimeoutError:
            self.close(SilentWorkerError(f"nothing was heard of it for {limit + SLACK_SECONDS:g} s"))
        except Exception as error:
            self.close(error)
        return None
