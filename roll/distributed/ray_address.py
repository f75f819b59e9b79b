"""Which Ray cluster the environment names; known without Ray."""

from __future__ import annotations

import os
from typing import Final

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
"""Environment variable with the address of a running cluster."""


def named_cluster() -> str | None:
    """Return the address of the cluster that the environment names; ``None`` where it names none."""
    return os.environ.get(ADDRESS_VARIABLE) or None
