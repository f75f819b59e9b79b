"""Processes of the package ``inside``: each is told what is wanted, and hands out a listening socket or a reason."""

from __future__ import annotations

import marshal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from roll.sandbox.records import SandboxError, SandboxUnavailableError

_START: Final = "import sys; sys.path.insert(0, {folder!r}); from inside.{module} import main; main({control})"
_SECONDS: Final = 30.0
"""How long one may take until it answers."""


def start_inside(
    module: str, wanted: Mapping[str, Any], stdout: IO[bytes] | int, stderr: IO[bytes] | int, refusal: str
) -> tuple[subprocess.Popen[bytes], socket.socket | None]:
    """Start a process, and wait until it answers.

    Args:
        module: Of the package ``inside``, whose ``main`` is called.
        wanted: What it is told.
        stdout: Where its output goes.
        stderr: Where its error output goes.
        refusal: What to say before the reason where the machine refuses.

    Returns:
        The process, and the socket that it handed out, if any.

    Raises:
        SandboxUnavailableError: The machine refuses.
        SandboxError: It did not answer.
    """
    ours, theirs = socket.socketpair()
    with ours:
        start = _START.format(folder=str(Path(__file__).parent), module=module, control=theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={"LANG": "C.UTF-8"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            ours.settimeout(_SECONDS)
            ours.sendall(marshal.dumps(dict(wanted)))
            ours.shutdown(socket.SHUT_WR)
            answer, handed, _, _ = socket.recv_fds(ours, 4096, 1)
            if answer != b"ok":
                reason = answer.decode("utf-8", "replace")
                if not reason:
                    raise SandboxError(f"the sandbox ended with code {process.wait()} before the command began")
                raise SandboxUnavailableError(f"{refusal}: {reason}")
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the sandbox was not ready within {_SECONDS:g} s") from None
            raise
    return process, socket.socket(fileno=handed[0]) if handed else None
