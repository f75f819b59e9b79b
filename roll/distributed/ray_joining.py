"""Joining a Ray cluster that runs already."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

import ray

from roll.config import RunError

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
"""Environment variable with the address of a running cluster."""

_CONNECT_TIMEOUT: Final = 10.0


def named_cluster() -> str | None:
    """Return the address of the cluster that the environment names; ``None`` where it names none."""
    return os.environ.get(ADDRESS_VARIABLE) or None


def join(address: str) -> None:
    """Join a running cluster.

    Raises:
        RunError: If none answers there.
    """
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            # Ray itself would wait for minutes, with messages about its inner workings.
            socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT).close()
        ray.init(address, logging_level=logging.WARNING)
    except (OSError, ValueError) as error:
        raise RunError(
            f"No Ray cluster answers at {ADDRESS_VARIABLE}={address}: {error} Start it there (ray start --head "
            "--port=6379), correct the variable (host:port of the head), or unset it to run on this machine alone."
        ) from error
