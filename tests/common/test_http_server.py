"""A server ends when it is told to, and whoever waits for an answer hears of it; on the event loop of Python too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn

from roll.common.http_server import HttpServer

LIMIT = 20.0

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Ask = Callable[[], Coroutine[Any, Any, Connected]]


async def begun(
    answers: asyncio.Event,
) -> tuple[HttpServer, asyncio.Task[None], Callable[[], Coroutine[Any, Any, Connected]]]:
    """Serve an app that answers when ``answers`` is set; return also what connects to it and asks."""
    asked = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await answers.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(uvicorn.Config(app, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    async def ask() -> Connected:
        connected = await asyncio.open_connection(*listener.getsockname())
        connected[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(asked.wait(), LIMIT)
        return connected

    return server, serving, ask


def test_a_forced_end_waits_for_nobody_and_who_waits_hears_of_it() -> None:
    async def run() -> None:
        server, serving, ask = await begun(asyncio.Event())
        reader, _ = await ask()
        server.should_exit = server.force_exit = True
        await asyncio.wait_for(serving, LIMIT)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), LIMIT)

    asyncio.run(run())


def test_an_end_that_is_not_forced_waits_for_answers_until_it_is() -> None:
    async def run() -> None:
        answers = asyncio.Event()
        server, serving, ask = await begun(answers)
        reader, _ = await ask()
        server.should_exit = True
        assert not (await asyncio.wait({serving}, timeout=0.5))[0]
        answers.set()
        await asyncio.wait_for(serving, LIMIT)
        assert (await asyncio.wait_for(reader.read(), LIMIT)).endswith(b"ok")

        server, serving, ask = await begun(asyncio.Event())
        reader, _ = await ask()
        server.should_exit = True
        assert not (await asyncio.wait({serving}, timeout=0.5))[0]
        server.force_exit = True
        await asyncio.wait_for(serving, LIMIT)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), LIMIT)

    asyncio.run(run())
