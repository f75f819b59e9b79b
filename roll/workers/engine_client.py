"""Engines as others see them: the very objects in one process, mailboxes across processes."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Final

from roll.distributed import LocalGroup, WorkerCalls, WorkerError
from roll.schedulers.replicas import GenerationClient, ReplicaDown
from roll.strategies.base import Completion, GenerationRequest
from roll.workers.mailbox import POLL_SECONDS

RELEASE_SECONDS: Final = 1.0
"""How long it may take until an engine hears of sessions to forget, if no request goes there meanwhile."""


@dataclass(frozen=True)
class Engines:
    """The engines of a run; can be handed to other workers.

    Attributes:
        calls: To the workers of ``actor_infer``.
        rpc_timeout: Seconds after which an engine that does not answer counts as dead.
    """

    calls: WorkerCalls
    rpc_timeout: float

    def clients(self) -> list[GenerationClient]:
        """Return a client for each engine, in order of rank."""
        ranks = range(self.calls.size)
        if isinstance(self.calls, LocalGroup):
            return [self.calls.worker(rank) for rank in ranks]
        return [self.client(rank) for rank in ranks]

    def client(self, rank: int) -> GenerationClient:
        """Return a new client of one engine."""
        if isinstance(self.calls, LocalGroup):
            own: GenerationClient = self.calls.worker(rank)
            return own
        return RemoteEngine(self.calls, rank, timeout=self.rpc_timeout)


@dataclass
class _Letter:
    """What the next call carries.

    Attributes:
        requests: To begin, by id.
        released: Sessions to forget.
        aborted: Requests to end.
        read: Set when the engine has taken it, or is gone.
    """

    requests: dict[str, GenerationRequest] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    read: asyncio.Event = field(default_factory=asyncio.Event)

    def __bool__(self) -> bool:
        return bool(self.requests or self.released or self.aborted)


class RemoteEngine:
    """Requests to an engine in another process.

    One call at a time carries all that came up meanwhile, and one fetches whatever is finished: under load the calls
    grow instead of their number.

    Args:
        calls: To the workers of the role.
        rank: Which engine.
        timeout: Seconds after which an engine that does not answer counts as dead.
    """

    def __init__(self, calls: WorkerCalls, rank: int, *, timeout: float) -> None:
        self._calls = calls
        self._rank = rank
        self._timeout = timeout
        self._name = uuid.uuid4().hex[:12]
        self._letter = _Letter()
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._sender: asyncio.Task[None] | None = None
        self._collector: asyncio.Task[None] | None = None
        self._reminder: asyncio.TimerHandle | None = None

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``. One that is cancelled goes on at the engine until :meth:`abort`.

        Raises:
            ReplicaDown: If the engine's process is gone, or does not answer.
            Exception: What the engine raised.
        """
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = future
        self._letter.requests[request.request_id] = request
        self._send_soon()
        if self._collector is None or self._collector.done():
            self._collector = asyncio.ensure_future(self._collect())
        try:
            return await future
        finally:
            if self._waiting.get(request.request_id) is future:
                del self._waiting[request.request_id]
            if self._letter.requests.get(request.request_id) is request:
                del self._letter.requests[request.request_id]

    async def abort(self, request_id: str) -> None:
        """End a running request; its ``generate`` returns what it has."""
        if self._letter.requests.pop(request_id, None) is not None:
            self._deliver(request_id, Completion([], [], "abort"))
            return
        letter = self._letter
        letter.aborted.append(request_id)
        self._send_soon()
        await letter.read.wait()

    async def release(self, session: str) -> None:
        """Have the prefix kept for ``session`` forgotten, soon: it goes with the next request."""
        self._letter.released.append(session)
        if self._reminder is None:
            self._reminder = asyncio.get_running_loop().call_later(RELEASE_SECONDS, self._remind)

    def _remind(self) -> None:
        self._reminder = None
        if self._letter.released:
            self._send_soon()

    def _send_soon(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._letter:
            letter, self._letter = self._letter, _Letter()
            carried = (list(letter.requests.values()), letter.released, letter.aborted)
            try:
                await self._calls.one(self._rank, "submit", self._name, *carried, timeout=self._timeout)
            except WorkerError as error:
                self._fail(error)
            except Exception as error:  # it cannot travel, or the engine refused it: the others are not concerned
                for request_id in letter.requests:
                    self._deliver(request_id, error)
            finally:
                letter.read.set()

    async def _collect(self) -> None:
        limit = POLL_SECONDS + self._timeout
        while self._waiting:
            try:
                answers = await self._calls.one(self._rank, "collect", self._name, timeout=limit)
            except Exception as error:  # whose answers are lost with it is not known: nobody must wait for ever
                self._fail(error)
            else:
                for request_id, answer in answers:
                    self._deliver(request_id, answer)

    def _deliver(self, request_id: str, answer: Completion | Exception) -> None:
        future = self._waiting.get(request_id)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _fail(self, error: Exception) -> None:
        """Tell everybody who waits, and end the other task, which would later fail what has begun until then."""
        waiting, self._waiting = self._waiting, {}
        letter, self._letter = self._letter, _Letter()
        letter.read.set()
        for task in (self._sender, self._collector):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._sender = self._collector = None
        for future in waiting.values():
            if not future.done():
                future.set_exception(_down(error))


def _down(error: Exception) -> Exception:
    if not isinstance(error, WorkerError):
        return error
    down = ReplicaDown(str(error))
    down.__cause__ = error
    return down
