"""Engines as others see them: the very objects in one process, calls to workers across processes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from roll.distributed import LocalGroup, WorkerCalls, WorkerDiedError, WorkerTimeoutError
from roll.generation import Completion, GenerationRequest
from roll.schedulers.replicas import GenerationClient, ReplicaDown


@dataclass(frozen=True)
class Engines:
    """The engines of a run; can be handed to other workers.

    Attributes:
        calls: To the workers of ``actor_infer``.
    """

    calls: WorkerCalls

    def clients(self) -> Sequence[GenerationClient]:
        """Return a client for each engine, in order of rank."""
        return [self.client(rank) for rank in range(self.calls.size)]

    def client(self, rank: int) -> GenerationClient:
        """Return a new client of one engine."""
        if isinstance(self.calls, LocalGroup):
            own: GenerationClient = self.calls.worker(rank)
            return own
        return RemoteEngine(self.calls, rank)


class RemoteEngine:
    """Requests to an engine in another process (:class:`roll.workers.engine.EngineWorker`).

    Args:
        calls: To the workers of the role.
        rank: Which engine.
    """

    def __init__(self, calls: WorkerCalls, rank: int) -> None:
        self._calls = calls
        self._rank = rank
        self._releasing: set[asyncio.Task[None]] = set()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``, however long that takes; cancelling ends the request.

        Raises:
            ReplicaDown: If the engine's process is gone, or has hung.
            Exception: What the engine raised.
        """
        completion: Completion = await self._ask("generate", request)
        return completion

    async def abort(self, request_id: str) -> None:
        """End a running request; its ``generate`` returns what it has. Nothing is left to end in a dead engine."""
        with suppress(ReplicaDown):
            await self._ask("abort", request_id)

    async def release(self, session: str) -> None:
        """Have the prefix kept for ``session`` forgotten, soon: nobody waits for it."""
        task = asyncio.ensure_future(self._release(session))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, session: str) -> None:
        with suppress(ReplicaDown):
            await self._ask("release", session)

    async def _ask(self, method: str, *args: Any) -> Any:
        try:
            return await self._calls.one(self._rank, method, *args, timeout=math.inf)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            raise ReplicaDown(str(error)) from error
