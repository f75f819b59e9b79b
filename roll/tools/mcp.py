"""The tool ``mcp``: whatever a server of the Model Context Protocol offers, over stdio or HTTP (package `mcp`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from roll.common.spelling import did_you_mean
from roll.common.unavailable import UnavailableError, is_unavailable
from roll.tools.errors import ToolConfigError, ToolUnavailableError, WrongCallError
from roll.tools.registry import register_tool
from roll.tools.tool import Tool

_GONE: Final = (-32000, -32001)
"""Codes of the protocol's errors: the connection is closed, a request had no answer in time."""

_GRACE: Final = 5.0
"""Seconds beyond the client's own time-out, for one that does not notice that its server is gone."""


@register_tool("mcp", risk="network")
class Server:
    """The tools of one server.

    Args:
        command: Program and arguments of a server that talks over stdin and stdout.
        url: Address of a server that talks over HTTP, instead.
        only: Names of the tools to offer; all by default.
        own: Whether each episode has a connection of its own, and so, over stdio, a server of its own, whose calls are
            made one after the other; else all episodes of a process share one, and whatever the server remembers.
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
                self._connection if self._own else None,
            )
            for name in self._only or offered
        ]


class _Connection:
    """A client that lives in a task of the background loop, since a connection is closed by whoever opened it."""

    def __init__(self, where: str | tuple[str, ...], seconds: float) -> None:
        """Connect, and ask what there is.

        Raises:
            ToolConfigError: The package is not installed, or there is no such server.
            ToolUnavailableError: There is one that does not answer.
        """
        try:
            import mcp
        except ImportError as error:
            raise ToolConfigError("tool 'mcp' needs the package mcp: pip install 'roll-rl[tools]'") from error
        target = where if isinstance(where, str) else mcp.StdioServerParameters(command=where[0], args=list(where[1:]))
        self._client = mcp.Client(target, read_timeout_seconds=seconds)
        self._seconds, self._where = seconds, where
        self._is_broken = False
        self._stop = asyncio.Event()
        self.offered: list[Any] = []
        ready = threading.Event()
        self._task = asyncio.run_coroutine_threadsafe(self._live(ready), _loop())
        # A task that fails has ended; one that lives has told what there is.
        self._task.add_done_callback(lambda _: ready.set())
        if not ready.wait(seconds):
            self._task.cancel()
            raise ToolUnavailableError(f"no MCP server answered within {seconds:g} s: {_named(where)}")
        if self._task.done():
            failure = _innermost(self._task.exception())
            kind = ToolConfigError if isinstance(failure, FileNotFoundError) else ToolUnavailableError
            raise kind(f"no MCP server: {_named(where)}: {type(failure).__name__}: {failure}") from failure

    @property
    def is_alive(self) -> bool:
        """Whether calls may still be answered."""
        return not (self._is_broken or self._task.done())

    def call(self, name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """Return the texts of a tool's answer.

        Raises:
            WrongCallError: The arguments do not fit its schema.
            RuntimeError: The server says that the call failed.
            UnavailableError: The server is gone, or does not answer in time.
        """
        import jsonschema

        problem = next(jsonschema.Draft202012Validator(schema).iter_errors(dict(arguments)), None)
        if problem is not None:
            raise WrongCallError(": ".join([*map(str, problem.absolute_path), problem.message]))
        asked = asyncio.run_coroutine_threadsafe(self._client.call_tool(name, dict(arguments)), _loop())
        try:
            answer = asked.result(self._seconds + _GRACE)
        except (Exception, concurrent.futures.CancelledError) as error:
            if not self._is_gone(error):
                raise
            asked.cancel()
            self._is_broken = True
            raise UnavailableError(f"MCP server {_named(self._where)}: {_innermost(error) or 'no answer'}") from error
        text = "\n".join(getattr(block, "text", None) or f"({block.type})" for block in answer.content)
        if answer.is_error:
            raise RuntimeError(text)
        return text

    def close(self) -> None:
        """End the connection, and with it a server that was started."""
        _loop().call_soon_threadsafe(self._stop.set)

    def _is_gone(self, error: BaseException) -> bool:
        """Whether a call failed since the connection did."""
        import mcp

        if isinstance(error, mcp.MCPError):
            return error.error.code in _GONE
        return self._task.done() or isinstance(error, concurrent.futures.CancelledError) or is_unavailable(error)

    async def _live(self, ready: threading.Event) -> None:
        async with self._client as client:
            page = await client.list_tools()
            self.offered += page.tools
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                self.offered += page.tools
            ready.set()
            await self._stop.wait()


_connections: dict[tuple[str | tuple[str, ...], float], _Connection] = {}
_connecting = threading.Lock()


def _shared(where: str | tuple[str, ...], seconds: float) -> _Connection:
    """Return the connection that the episodes of this process share; another where the last one broke."""
    with _connecting:
        found = _connections.get((where, seconds))
        if found is None or not found.is_alive:
            if found is not None:
                found.close()
            found = _connections[where, seconds] = _Connection(where, seconds)
        return found


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


def _named(where: str | tuple[str, ...]) -> str:
    return where if isinstance(where, str) else " ".join(where)


def _innermost(error: BaseException | None) -> BaseException | None:
    """Return what is wrong in groups of errors, where it is one thing."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
