"""Start Ray on this machine, also where it has much else to do."""

from __future__ import annotations

import logging
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from roll.config.errors import RunError

_TRIES = 3
_TIMED_OUT = "timed out during startup"
_PARTS = b"/ray/"  # of a path, in the command line of every process of Ray's
_SECRET = "RAY_AUTH_TOKEN"


def start_here(**options: Any) -> None:
    """Start a Ray of this machine alone, also where somebody else's runs on it: ``ray.init("local", …)``.

    Ray gives its node half a minute to come up, and leaves running what it started by then. That is ended, and where
    the time was not enough Ray is started again.

    Args:
        options: Those of ``ray.init``.

    Raises:
        RunError: If it does not come up.
    """
    # It warns that strangers cannot use it.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    if not _home_keeps_a_secret():
        os.environ.setdefault(_SECRET, secrets.token_hex())
    for tries_left in reversed(range(_TRIES)):
        before = _processes()
        try:
            # Without "local", Ray would join one that runs here already.
            ray.init("local", **options)
            return
        except Exception as error:  # Ray has no class for it
            _end(_processes() - before)
            if _TIMED_OUT not in str(error):
                raise
            if not tries_left:
                raise RunError(
                    f"Ray did not come up on this machine, {_TRIES} times within half a minute: there is too much else "
                    "to do. Start again when other programs have ended (`uptime` shows the load), or set cluster=local."
                ) from error


def _home_keeps_a_secret() -> bool:
    """Whether the secret of a Ray is in the home folder, or Ray can put one there; in a container it often cannot."""
    try:
        folder = Path.home() / ".ray"
    except RuntimeError:  # this user has none
        return False
    if os.access(folder / "auth_token", os.R_OK):
        return True
    return os.access(folder if folder.exists() else folder.parent, os.W_OK)


def _processes() -> set[int]:
    """Return the processes of Ray that this one has started; none where the system does not tell."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for number in children.read_text("utf-8").split():
            with suppress(OSError):
                if _PARTS in Path("/proc", number, "cmdline").read_bytes():
                    found.add(int(number))
    return found


def _end(processes: set[int]) -> None:
    for process in processes:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
