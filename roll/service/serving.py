"""Training as a service, until Ctrl-C."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from roll.common.http_server import HttpServer
from roll.config import ConfigError, Problem
from roll.service.clients import Base, Clients


def serve_training(
    base: Base, *, listener: socket.socket, say: Callable[[str], None], folder: Path, key: str | None = None
) -> None:
    """Let clients of Tinker's protocol train adapters of a model until Ctrl-C.

    Args:
        base: What they adapt.
        listener: Where they come to; listens already.
        say: Shows a line to the person at the terminal.
        folder: Where weights that they save go.
        key: What they show; it begins with ``tml-``, for their client wants that. ``None`` makes one.

    Raises:
        ConfigError: The package ``tinker`` is not installed, or the key is none that its client sends.
    """
    try:
        from roll.service.app import Service
    except ModuleNotFoundError as error:
        fix = "pip install 'roll-rl[service]'"
        raise ConfigError([Problem("--train", f"{error.name} is not installed.", fix, "true")]) from error
    shown = key or f"tml-{secrets.token_urlsafe(24)}"
    if not shown.startswith("tml-"):
        raise ConfigError([Problem("--key", "the client refuses such a key.", "begin it with tml-", shown)])

    async def answer() -> None:
        clients = Clients(base, folder)
        host, port = listener.getsockname()[:2]
        say(f"{base.name} can be trained at http://{host}:{port}; Ctrl-C ends it.")
        say(f"  export TINKER_BASE_URL=http://{host}:{port} TINKER_API_KEY={shown}")
        say(f"  base model {base.name}, {base.longest:,} tokens; weights go to {folder}")
        config = uvicorn.Config(
            Service(clients, shown).app, log_level="warning", access_log=False, server_header=False, lifespan="off"
        )
        try:
            await HttpServer(config).serve(sockets=[listener])
        finally:
            await clients.close()

    asyncio.run(answer())
