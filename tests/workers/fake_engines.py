"""An engine that is a fake: what a request says is what becomes of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.generation import Completion, GenerationRequest, SamplingParams


class Refused(ValueError):
    """Can be pickled."""


class Stubborn(Exception):
    """Cannot be made again from its pickle."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def request(name: str, number: int = 0, session: str | None = None) -> GenerationRequest:
    """Return a request; the first word of its name says what becomes of it (see :class:`FakeEngine`)."""
    return GenerationRequest(name, [number], SamplingParams(), session=session)


@dataclass
class Log:
    """What a fake engine was asked to do."""

    begun: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)


class FakeEngineWorker:
    """**Not an engine.** It answers with the prompt; a request called ``fail …``, ``wait …``, … does as it says.

    It has the calls of :class:`roll.workers.engine.EngineWorker` that requests are made of.
    """

    def __init__(self) -> None:
        self._log = Log()
        self._aborts: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerationRequest) -> Completion:
        """Do what the request's name says."""
        name = request.request_id
        self._log.begun.append(name)
        self._log.running.append(name)
        try:
            reason = await self._reason(name)
        finally:
            self._log.running.remove(name)
        return Completion(list(request.prompt_ids), [-1.0] * len(request.prompt_ids), reason)

    async def _reason(self, name: str) -> str:
        what = name.split()[0]
        if what == "fail":
            raise Refused(f"refused {name}")
        if what == "resist":
            raise Stubborn(1, 2)
        if what == "die":
            os._exit(3)
        if what == "hang":
            time.sleep(60)
        if what == "cancel":
            raise asyncio.CancelledError
        if what == "soon":
            await asyncio.sleep(0.2)
        if what == "wait":
            await self._aborts.setdefault(name, asyncio.Event()).wait()
            return "abort"
        return "stop"

    async def abort(self, request_id: str) -> None:
        """End a waiting request; like an engine, it forgets ids that nobody has."""
        self._log.aborted.append(request_id)
        if request_id in self._log.running:
            self._aborts.setdefault(request_id, asyncio.Event()).set()

    async def release(self, session: str) -> None:
        """Take note."""
        self._log.released.append(session)

    async def log(self) -> Log:
        """Return what happened so far."""
        return self._log

    async def forget(self) -> None:
        """Begin a new log."""
        for seen in (self._log.begun, self._log.aborted, self._log.released):
            seen.clear()


def names(what: str, count: int) -> Sequence[str]:
    """Return the names of so many requests."""
    return [f"{what} {number}" for number in range(count)]
