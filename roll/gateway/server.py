"""A server for a gateway, in a thread of its own: what clients send is read there, and disturbs no engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from roll.config import ConfigError, Problem
from roll.gateway.app import Gateway
from roll.gateway.client import AgentClient
from roll.gateway.records import Answers, Ask, Asked

HOST = "127.0.0.1"
_KEEP_ALIVE = 120
"""Seconds that a connection may be silent: agents think between their calls."""
_SECONDS = 10.0
"""How long a server may take to start or to end."""


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


class GatewayServer:
    """Serves a gateway until it is closed.

    Attributes:
        url: Where, without a path.

    Args:
        gateway: What it serves.
        host: The interface; by default none that another machine reaches.
        port: 0 for any that is free.

    Raises:
        ConfigError: The port is taken.
    """

    def __init__(self, gateway: Gateway, host: str = HOST, port: int = 0) -> None:
        listener = listen(host, port)
        self.url = f"http://{host}:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(server_config(gateway))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="roll-gateway", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any longer; calls that are being answered are lost."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(_SECONDS)


class AgentEndpoint:
    """A gateway for the episodes of this process, which is served from the first of them on.

    Args:
        model: The name of the policy.
    """

    def __init__(self, model: str) -> None:
        self._gateway = Gateway(model)
        self._server: GatewayServer | None = None

    @contextmanager
    def admit(self, ask: Ask) -> Iterator[AgentClient]:
        """Let ``ask``, which works in the running event loop, answer one agent as long as the block runs."""
        if self._server is None:
            self._server = GatewayServer(self._gateway)
        here = OnLoop(ask, asyncio.get_running_loop())
        key = self._gateway.open(here)
        try:
            yield AgentClient(self._server.url, key, self._gateway.model, here)
        finally:
            self._gateway.close(key)

    def close(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            self._server.close()
            self._server = None


def server_config(gateway: Gateway) -> uvicorn.Config:
    """Return how a gateway is served."""
    return uvicorn.Config(
        gateway.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE,
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens already, so that no client comes too early.

    Raises:
        ConfigError: The port cannot be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        fix = "choose another one, or leave it out for any that is free."
        problem = Problem("--port", f"port {port} of {host} cannot be used: {error.strerror}.", fix, str(port))
        raise ConfigError([problem]) from error
    return listener
