"""How a process of ours ends."""

from __future__ import annotations

import atexit
import gc


def end_quickly() -> None:
    """Let the garbage collector look at nothing when this process ends, which frees all of it anyway; for programs.

    It would walk several times over the million objects of libraries: two seconds after a run's last line.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
