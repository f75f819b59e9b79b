"""The process that shuts a command in: its own files, its own processes, and one address that it can reach.

The command is not Python and not ours. It sees system libraries and the folders that it was given, and a network with
nothing in it but a socket that listens on the loopback interface, which is handed to whoever started this.
"""

from __future__ import annotations

import marshal
import os
import socket

from . import kernel, loopback, walls

TYPE_CHECKING = False  # ``typing`` takes six milliseconds to import.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def main(control: int) -> None:
    """Read what is wanted from a socket, shut this process in, answer there, and become the command.

    The answer is ``ok``, with the listening socket beside it if one was wanted, or why the machine refuses.
    """
    kernel.die_with_parent()
    channel = socket.socket(fileno=control)
    with channel.makefile("rb") as stream:
        wanted = marshal.loads(stream.read())
    if os.getppid() != wanted["parent"]:
        return
    try:
        around = walls.enclose(
            wanted["root"], wanted["readable"], wanted["writable"], wanted["user"], wanted["room_mb"] << 20
        )
        listener = loopback.listening(wanted["port"]) if wanted["port"] else None
    except OSError as error:
        channel.sendall(str(error).encode())
        return
    loopback.hand_out(channel, listener)
    child = os.fork()
    if child == 0:
        _become(wanted, around)
    _wait(child)


def _become(wanted: Mapping[str, Any], around: walls.Walls) -> None:
    """Turn this process into the command."""
    try:
        os.setsid()
        limits = wanted["limits"]
        walls.limit(None, limits["memory_mb"] << 20, limits["file_mb"] << 20, limits["open_files"], limits["processes"])
        os.chdir(wanted["folder"])
        os.umask(0o077)
        walls.close_door(around, sockets=True)
        os.execve(wanted["words"][0], wanted["words"], wanted["environment"])
    except OSError as error:
        os.write(2, f"{wanted['words'][0]} cannot be started in the sandbox: {error}\n".encode())
    os._exit(127)


def _wait(command: int) -> None:
    """Bury whatever ends, and end as the command does; what it left running dies with this process."""
    while True:
        child, status = os.wait()
        if child == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
