"""A server for a gateway, in a thread of its own: what clients send is read there, and disturbs no engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from roll.common.http_server import HttpServer
from roll.config import ConfigError, Problem
from roll.gateway.app import Gateway

HOST = "127.0.0.1"
_KEEP_ALIVE = 120
"""Seconds that a connection may be silent: agents think between their calls."""
_SECONDS = 10.0
"""How long a server may take to start or to end."""


class GatewayServer:
    """Serves a gateway until it is closed.

    Attributes:
        url: Where, without a path.
        port: Its port.

    Args:
        gateway: What it serves.
        host: The interface; by default none that another machine reaches.
        port: 0 for any that is free.

    Raises:
        ConfigError: The port is taken.
    """

    def __init__(self, gateway: Gateway, host: str = HOST, port: int = 0) -> None:
        listener = listen(host, port)
        self.port: int = listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self._server = HttpServer(server_config(gateway))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="roll-gateway", daemon=True)
        self._thread.start()

    @contextmanager
    def also_at(self, listener: socket.socket) -> Iterator[None]:
        """Answer at one more socket, which listens already, while the block runs; it is closed then."""
        self._began.wait(_SECONDS)
        assert self._loop is not None
        accepting = asyncio.run_coroutine_threadsafe(self._accept(listener), self._loop).result(_SECONDS)
        try:
            yield
        finally:
            # What it accepted ends with whoever sits at the other end.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(accepting.close)

    def close(self) -> None:
        """Answer nobody any longer; calls that are being answered are lost."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(_SECONDS)

    def _run(self, listener: socket.socket) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._began.set()
            await self._server.serve(sockets=[listener])

        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:  # uvloop's, if it is there
            runner.run(serve())

    async def _accept(self, listener: socket.socket) -> asyncio.Server:
        config, state = self._server.config, self._server.server_state
        while not self._server.started:
            await asyncio.sleep(0.01)

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

        return await asyncio.get_running_loop().create_server(protocol, sock=listener)


def server_config(gateway: Gateway) -> uvicorn.Config:
    """Return how a gateway is served."""
    return uvicorn.Config(
        gateway.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody here asks where a call comes from
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
