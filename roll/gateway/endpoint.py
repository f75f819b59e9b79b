"""The gateway of a process in which agents play: one for all of their episodes, each with a key of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from roll.gateway.app import Gateway
from roll.gateway.client import AgentClient
from roll.gateway.records import Answers, Ask, Asked
from roll.gateway.server import GatewayServer


class OnLoop:
    """Asks in the event loop in which engines are asked, whatever loop a call comes from.

    Args:
        ask: Who answers there.
        loop: Where.
    """

    def __init__(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._loop = loop

    async def ask(self, asked: Asked) -> Answers:
        """Answer a call; see :class:`roll.gateway.records.Ask`."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._answer(asked), self._loop))

    async def _answer(self, asked: Asked) -> Answers:
        return await self._ask.ask(asked)


class AgentEndpoint:
    """A gateway for the episodes of this process, which is served from the first of them on.

    Args:
        model: The name of the policy.
    """

    def __init__(self, model: str) -> None:
        self._gateway = Gateway(model)
        self._server: GatewayServer | None = None

    @contextmanager
    def admit(self, ask: Ask, others: Mapping[str, Ask] | None = None) -> Iterator[AgentClient]:
        """Let ``ask`` answer one agent as long as the block runs, and ``others`` for models of their names.

        All of them work in the running event loop.
        """
        if self._server is None:
            self._server = GatewayServer(self._gateway)
        loop = asyncio.get_running_loop()
        here = OnLoop(ask, loop)
        key = self._gateway.open(here, others={name: OnLoop(other, loop) for name, other in (others or {}).items()})
        try:
            yield AgentClient(self._server, key, self._gateway.model, here)
        finally:
            self._gateway.close(key)

    def close(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            self._server.close()
            self._server = None
