"""The endpoint of a policy whose weights change while it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from roll.gateway.app import Gateway, how_to_ask
from roll.gateway.endpoint import OnLoop
from roll.gateway.records import Answers, Ask, Asked
from roll.gateway.served import ServedPolicy
from roll.gateway.server import GatewayServer
from roll.gateway.unrecorded import Unrecorded


class PolicyEndpoint:
    """Answers for a policy, each call with weights of one version; made in the event loop in which engines are asked.

    Calls wait until :meth:`begin`, and while weights are taken.

    Args:
        policy: Whose answers they are.
        name: The name of the model.
        host: The interface.
        port: 0 for any that is free.
        key: What clients show; ``None`` makes one.

    Raises:
        ConfigError: The port is taken.
    """

    def __init__(self, policy: ServedPolicy, *, name: str, host: str, port: int, key: str | None) -> None:
        self._calls = _OneVersion(Unrecorded(policy))
        self._longest = policy.sequence_length
        self._gateway = Gateway(name, only_model=True)
        self._key = self._gateway.open(OnLoop(self._calls, asyncio.get_running_loop()), key)
        self._server = GatewayServer(self._gateway, host, port)

    def lines(self) -> Iterator[str]:
        """Return what a person needs to ask."""
        return how_to_ask([self._gateway.model], self._server.url, self._key, self._longest)

    async def begin(self) -> None:
        """Answer from now on."""
        await self._calls.begin()

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Answer what is being answered, and nothing more while the block runs."""
        await self._calls.rest()
        try:
            yield
        finally:
            await self._calls.begin()

    def close(self) -> None:
        """Answer nobody any longer."""
        self._server.close()


class _OneVersion:
    """Counts the calls that are being answered, and lets others wait."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._answering = 0
        self._rests = True
        self._changed = asyncio.Condition()

    async def ask(self, asked: Asked) -> Answers:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._rests)
            self._answering += 1
        try:
            return await self._ask.ask(asked)
        finally:
            async with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    async def begin(self) -> None:
        async with self._changed:
            self._rests = False
            self._changed.notify_all()

    async def rest(self) -> None:
        async with self._changed:
            self._rests = True
            await self._changed.wait_for(lambda: not self._answering)
