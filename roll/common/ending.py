"""How a process of ours ends."""

from __future__ import annotations

import atexit
import gc
import sys

_COUNTING = ("_duckdb",)
"""Modules that complain at the end about each object of theirs that is left (those made with nanobind do)."""


def end_quickly() -> None:
    """Let the garbage collector look at nothing when this process ends, which frees all of it anyway; for programs.

    It would walk several times over the million objects of libraries: two seconds after a run's last line.
    """
    atexit.unregister(_look_no_more)
    atexit.register(_look_no_more)


def _look_no_more() -> None:
    if any(module in sys.modules for module in _COUNTING):
        gc.disable()  # of three times that it looks at everything, the last remains
    else:
        gc.freeze()
