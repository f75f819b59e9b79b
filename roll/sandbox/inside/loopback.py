"""A socket that listens on the loopback interface of a network of its own, for whoever is outside of it.

A socket stays in the network in which it was made, wherever it is handed to: no packet goes from the one to the other.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import socket
import struct

from . import kernel

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_BACKLOG = 128


def main(control: int) -> None:
    """Read from a socket which process's network is wanted, enter it, and hand out a socket that listens there.

    The answer is ``ok`` with the listening socket beside it, or why the machine refuses.
    """
    channel = socket.socket(fileno=control)
    with channel.makefile("rb") as stream:
        wanted = marshal.loads(stream.read())
    try:
        _enter_network_of(wanted["process"])
        listener = listening(wanted["port"])
    except OSError as error:
        channel.sendall(str(error).encode())
        return
    hand_out(channel, listener)


def _enter_network_of(process: int) -> None:
    """Move this process into the network of another one, with the rights that the owner of that network has there."""
    user, network = (f"/proc/{process}/ns/{kind}" for kind in ("user", "net"))
    # Opened before anything is entered: who is in there may not look at the process.
    within = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.samefile(user, "/proc/self/ns/user"):
        owner = os.open(user, os.O_RDONLY | os.O_CLOEXEC)
        kernel.enter(owner)
        os.close(owner)
    kernel.enter(within)
    os.close(within)


def listening(port: int) -> socket.socket:
    """Switch the loopback interface of this network on, and return a socket that listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(asking, _SIOCGIFFLAGS, request))
        if not flags & _IFF_UP:
            fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


def hand_out(channel: socket.socket, listener: socket.socket | None) -> None:
    """Say that all is well, and pass on a listening socket, if there is one, and both end here."""
    if listener is None:
        channel.sendall(b"ok")
    else:
        socket.send_fds(channel, [b"ok"], [listener.fileno()])
        listener.close()
    channel.close()
