"""The process that shuts a command in: its own files, its own processes, and one address that it can reach.

The command is not Python and not ours. It sees system libraries and the folders that it was given, and a network with
nothing in it but a socket that listens on the loopback interface. That socket is made here, and handed to whoever
started this: a socket stays in the network in which it was made, so no packet goes from the one to the other.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import socket
import struct

from . import kernel, walls

TYPE_CHECKING = False  # ``typing`` takes six milliseconds to import.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_BACKLOG = 128


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
        listener = _loopback(wanted["port"]) if wanted["port"] else None
    except OSError as error:
        channel.sendall(str(error).encode())
        return
    if listener is None:
        channel.sendall(b"ok")
    else:
        socket.send_fds(channel, [b"ok"], [listener.fileno()])
        listener.close()
    channel.close()
    child = os.fork()
    if child == 0:
        _become(wanted, around)
    _wait(child)


def _loopback(port: int) -> socket.socket:
    """Switch the loopback interface of this network on, and return a socket that listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(asking, _SIOCGIFFLAGS, request))
        fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


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
