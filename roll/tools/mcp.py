"""The tool ``mcp``: whatever a server of the Model Context Protocol offers, over stdio or HTTP (package `mcp`)."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from roll.common.spelling import did_you_mean
from roll.tools.errors import ToolConfigError, WrongCallError
from roll.tools.registry import register_tool
from roll.tools.tool import Tool

T = TypeVar("T")


@register_tool("mcp", risk="network")
class Server:
    """The tools of one server.

    Args:
        command: Program and arguments of a server that talks over stdin and stdout.
        url: Address of a server that talks over HTTP, instead.
        only: Names of the tools to offer; all by default.
        own: Whether each episode has a connection of its own, and so, over stdio, a server of its own; else all
            episodes of a process share one, and whatever the server remembers.
        seconds: To connect, and for one answer of the server.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str | None = None,
        only: Sequence[str] = (),
        own: bool = False,
        seconds: float = 30.0,
    ) -> None:
        if bool(command) == bool(url):
            raise ToolConfigError("tool 'mcp' takes either command, a list of words, or url")
        self._only = only
        self._own = own
        where = url or tuple(command)
        self._connection = _Connection(where, seconds) if own else _shared(where, seconds)

    def tools(self) -> list[Tool]:
        """Return the tools that the server offers.

        Raises:
            ToolConfigError: It does not offer one that was asked for.
        """
        offered = {each.name: each for each in self._connection.offered}
        for name in self._only:
            if name not in offered:
                raise ToolConfigError(f"the MCP server has no tool {name!r}. {did_you_mean(name, offered)}")
        close = self._connection.close if self._own else lambda: None
        return [
            Tool(
                name,
                offered[name].description or name,
                offered[name].input_schema,
                partial(self._connection.call, name, offered[name].input_schema),
                "network",
                close,
            )
            for name in self._only or offered
        ]


class _Connection:
    """A client that lives in a task of the background loop, since a connection is closed by whoever opened it."""

    def __init__(self, where: str | tuple[str, ...], seconds: float) -> None:
        """Connect, and ask what there is.

        Raises:
            ToolConfigError: The package is not installed, or there is no such server.
        """
        try:
            import mcp
        except ImportError as error:
            raise ToolConfigError("tool 'mcp' needs the package mcp: pip install 'roll-rl[tools]'") from error
        target = where if isinstance(where, str) else mcp.StdioServerParameters(command=where[0], args=list(where[1:]))
        self._client = mcp.Client(target, read_timeout_seconds=seconds)
        self._stop = asyncio.Event()
        self.offered: list[Any] = []
        ready = threading.Event()
        self._task = asyncio.run_coroutine_threadsafe(self._live(ready), _loop())
        # A task that fails has ended; one that lives has told what there is.
        self._task.add_done_callback(lambda _: ready.set())
        if not ready.wait(seconds):
            self._task.cancel()
            raise ToolConfigError(f"no MCP server answered within {seconds:g} s: {_named(where)}")
        if self._task.done():
            failure = self._task.exception()
            raise ToolConfigError(f"no MCP server: {_named(where)}: {_innermost(failure)}") from failure

    def call(self, name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """Return the texts of a tool's answer.

        Raises:
            WrongCallError: The arguments do not fit its schema.
            RuntimeError: The server says that the call failed.
        """
        import jsonschema

        problem = next(jsonschema.Draft202012Validator(schema).iter_errors(dict(arguments)), None)
        if problem is not None:
            raise WrongCallError(": ".join([*map(str, problem.absolute_path), problem.message]))
        answer = _result(self._client.call_tool(name, dict(arguments)))
        text = "\n".join(getattr(block, "text", None) or f"({block.type})" for block in answer.content)
        if answer.is_error:
            raise RuntimeError(text)
        return text

    def close(self) -> None:
        """End the connection, and with it a server that was started."""
        _loop().call_soon_threadsafe(self._stop.set)

    async def _live(self, ready: threading.Event) -> None:
        async with self._client as client:
            page = await client.list_tools()
            self.offered += page.tools
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                self.offered += page.tools
            ready.set()
            await self._stop.wait()


@functools.lru_cache(maxsize=16)
def _shared(where: str | tuple[str, ...], seconds: float) -> _Connection:
    return _Connection(where, seconds)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


def _result(awaitable: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(awaitable, _loop()).result()


def _named(where: str | tuple[str, ...]) -> str:
    return where if isinstance(where, str) else " ".join(where)


def _innermost(error: BaseException | None) -> str:
    """Return what is wrong in groups of errors, where it is one thing."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
