"""What must be set in a process before numerical libraries are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping

_DEFAULTS = {
    # How long an idle OpenMP thread spins before it sleeps. The library's own default is so long that on a machine
    # with anything else to do a small model runs about ten times slower; this costs nothing on an idle one.
    "GOMP_SPINCOUNT": "1000",
    "TOKENIZERS_PARALLELISM": "false",
}


def process_defaults() -> dict[str, str]:
    """Return the variables of :func:`prepare_process`, for processes that are started on other machines."""
    return dict(_DEFAULTS)


def prepare_process(system_envs: Mapping[str, str] | None = None) -> None:
    """Set environment variables for this process and its children; call it before torch is imported.

    Args:
        system_envs: Values of the configuration; they win over defaults and over what is set already.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.update(system_envs or {})
