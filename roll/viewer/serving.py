"""A server for the review on the loopback interface, until Ctrl-C."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable

import uvicorn

from roll.common.http_server import HttpServer
from roll.config import ConfigError, Problem
from roll.viewer.episodes import Episodes
from roll.viewer.server import Review, make_app

HOST = "127.0.0.1"


def serve(episodes: Episodes, port: int, say: Callable[[str], None], *, open_browser: bool) -> None:
    """Serve the review of a run.

    Args:
        episodes: Its table.
        port: Where; 0 for any that is free.
        say: Shows a line to the person at the terminal.
        open_browser: Whether to open it in a browser.

    Raises:
        ConfigError: The port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        fix = "choose another one, or leave it out for any that is free."
        raise ConfigError(
            [Problem("--port", f"port {port} cannot be used: {error.strerror}.", fix, str(port))]
        ) from error
    addresses: list[str] = []

    def announce(address: str) -> None:
        addresses.append(address)
        first = len(addresses) == 1
        say(f"Open {address}" if first else f"That address has been used. For another browser: {address}")

    _, gate = make_app(Review(episodes), listener.getsockname()[1], announce)
    config = uvicorn.Config(gate, log_level="warning", access_log=False, server_header=False)
    server = _Server(config, lambda: _open(gate.new_key, addresses, open_browser))
    say(f"Review of {episodes.run.name}; Ctrl-C ends it.")
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        episodes.close()


def _open(new_key: Callable[[], None], addresses: list[str], open_browser: bool) -> None:
    new_key()
    if open_browser:
        webbrowser.open(addresses[0])


class _Server(HttpServer):
    """Says that it is ready when it is."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets=sockets)
        self._ready()
