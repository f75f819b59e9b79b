"""A server for HTTP that ends when it is told to, whoever still waits for an answer."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import uvicorn

_LOOKS_EVERY: Final = 0.05
"""Seconds between two looks at whether an end has become a forced one."""


class HttpServer(uvicorn.Server):
    """Hangs up on everybody where its end is forced (``force_exit``; the second Ctrl-C): clients are to know.

    uvicorn leaves such connections to the garbage collector, and from Python 3.12 on it waits until clients close them
    (``asyncio.Server.wait_closed``), which who waits for an answer does not.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no longer; let calls be answered, or hang up."""
        ending = asyncio.create_task(super().shutdown(sockets=sockets))
        try:
            while not ending.done():
                await asyncio.wait({ending}, timeout=_LOOKS_EVERY)
                if self.force_exit:
                    self._hang_up()
            for _ in range(3):  # what is accepted at this moment is a connection after that
                await asyncio.sleep(0)
            self._hang_up()
            await asyncio.sleep(0)
        finally:
            ending.cancel()
        await ending

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            if (transport := connection.transport) is not None:
                transport.abort()
