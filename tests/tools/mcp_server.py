"""A server of the Model Context Protocol, made with the package's own class: over stdio, or HTTP at a port."""

from __future__ import annotations

import sys

from mcp.server import MCPServer

server = MCPServer("numbers")
remembered: list[int] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def remember(number: int) -> str:
    """Remember a number; say all that were."""
    remembered.append(number)
    return str(remembered)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
