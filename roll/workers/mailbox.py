"""An engine with mailboxes: clients in other processes hand over many requests in one call, and fetch many answers."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from roll.distributed import WorkerCallError
from roll.schedulers.replicas import GenerationClient, ReplicaDown
from roll.strategies.base import Completion, GenerationRequest

Answer = tuple[str, Completion | Exception]
"""A request's id, and what became of it."""

POLL_SECONDS: Final = 10.0
"""How long an engine holds back an empty answer to somebody who asks for finished requests."""

GATHER_SECONDS: Final = 0.005
"""How long the first answer of a call waits for others, so that a call carries several: a call is what costs most."""


class Engine(GenerationClient, Protocol):
    """What is behind the mailboxes; every :class:`roll.strategies.base.GenerationStrategy` is one."""

    async def close(self) -> None:
        """Free everything."""
        ...


@dataclass
class _Mailbox:
    """What is finished for one client."""

    finished: list[Answer] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class MailboxWorker:
    """The part of an engine worker that others ask for completions.

    Whoever shares its process calls :meth:`generate`. Clients in other processes hand over many requests in one call
    (:meth:`submit`) and fetch many completions in one (:meth:`collect`): a call to another process costs the better
    part of a millisecond, whatever it carries.

    Args:
        engine: What samples.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._boxes: dict[str, _Mailbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``."""
        return await self._engine.generate(request)

    async def abort(self, request_id: str) -> None:
        """End a running request; it is answered with what it has."""
        await self._engine.abort(request_id)

    async def release(self, session: str) -> None:
        """Forget the prefix kept for ``session``."""
        await self._engine.release(session)

    async def submit(
        self,
        client: str,
        requests: Sequence[GenerationRequest],
        released: Sequence[str] = (),
        aborted: Sequence[str] = (),
    ) -> None:
        """Begin requests of a client; :meth:`collect` gives the answers.

        Args:
            client: Who asks; names its mailbox.
            requests: What to begin.
            released: Sessions to forget before.
            aborted: Requests of earlier calls to end; returns when the engine has heard of it.
        """
        for session in released:
            await self._engine.release(session)
        box = self._boxes.setdefault(client, _Mailbox())
        for request in requests:
            task = asyncio.ensure_future(self._answer(box, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if aborted:
            await asyncio.gather(*(self._engine.abort(request_id) for request_id in aborted))

    async def collect(self, client: str) -> list[Answer]:
        """Return what is finished for a client, as soon as something is; nothing if nothing is for a while."""
        box = self._boxes.setdefault(client, _Mailbox())
        if not box.finished:
            box.arrived.clear()
            try:
                await asyncio.wait_for(box.arrived.wait(), POLL_SECONDS)
            except TimeoutError:
                return []
            await asyncio.sleep(GATHER_SECONDS)
        finished, box.finished = box.finished, []
        return finished

    async def alive(self) -> bool:
        """Answer."""
        return True

    async def close(self) -> None:
        """End all requests and close the engine."""
        for task in list(self._tasks):
            task.cancel()
        await self._engine.close()

    async def _answer(self, box: _Mailbox, request: GenerationRequest) -> None:
        answer: Completion | Exception
        try:
            answer = await self._engine.generate(request)
        except asyncio.CancelledError:
            # Nobody else would tell the client, and it would wait for ever.
            answer = ReplicaDown(f"The engine was closed, or cancelled request {request.request_id!r}.")
        except Exception as error:  # it is the client's: carried to where it waits
            answer = portable(error)
        box.finished.append((request.request_id, answer))
        box.arrived.set()


def portable(error: Exception) -> Exception:
    """Return an exception that can be sent to another process, with its traceback as a note.

    One that cannot be pickled, or made again from its pickle, is told about by a :class:`WorkerCallError`: it would
    take down the answers of all requests that travel with it.
    """
    try:
        intact = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # whatever an exception's own constructor raises when it is made again
        intact = False
    told = error if intact else WorkerCallError(f"{type(error).__module__}.{type(error).__qualname__}", str(error))
    told.add_note("Raised by the engine.\nThere:\n" + "".join(traceback.format_exception(error)).rstrip())
    return told
