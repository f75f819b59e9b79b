"""Joining a Ray cluster that runs already."""

from __future__ import annotations

import logging
import socket
from typing import Final

import ray

from roll.config import RunError
from roll.distributed.ray_address import ADDRESS_VARIABLE

_CONNECT_TIMEOUT: Final = 10.0


def join(address: str, *, or_else: str = "") -> None:
    """Join a running cluster.

    Args:
        address: Its address.
        or_else: What else a person could do where none answers.

    Raises:
        RunError: If none answers there.
    """
    fix = f"Start it there (ray start --head --port=6379), or correct the variable (host:port of the head){or_else}."
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            # Ray itself would wait for minutes, with messages about its inner workings.
            socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT).close()
            fix = (
                "Something listens there. If it is a cluster that asks for a token, as it says where it is started, "
                "set RAY_AUTH_MODE=token for this run too."
            )
        ray.init(address, logging_level=logging.WARNING)
    except (OSError, ValueError) as error:
        raise RunError(f"No Ray cluster answers at {ADDRESS_VARIABLE}={address}: {error} {fix}") from error
