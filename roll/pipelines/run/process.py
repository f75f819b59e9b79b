"""A run in the process of its caller: a program, or a script or notebook that has loaded torch already.

A program prepares its process before torch is loaded (:func:`roll.config.process.prepare_process`). Started from Python
a run comes too late for that, and must neither be slower nor wrong because of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

import torch

from roll.config.process import prepare_process, process_defaults

_SPIN = "GOMP_SPINCOUNT"
_THREADS = "OMP_NUM_THREADS"
_crowd: list[threading.Thread] = []


def settle_process(system_envs: Mapping[str, str]) -> list[str]:
    """Do what :func:`roll.config.process.prepare_process` does, for libraries that are loaded by now.

    Args:
        system_envs: Environment variables of the configuration.

    Returns:
        What could not be done any more, a sentence each.
    """
    new = {name: value for name, value in system_envs.items() if os.environ.get(name) != value}
    if _SPIN not in os.environ:
        _let_idle_threads_sleep()
    if _THREADS in new and new[_THREADS].isdigit():
        torch.set_num_threads(int(new[_THREADS]))
    prepare_process(system_envs)
    late = [name for name in new if name not in (_THREADS, *process_defaults())]
    if not late:
        return []
    return [
        f"system_envs: {', '.join(late)} set only now, after libraries were imported; one that reads such a variable "
        "at its import did not see it. Set it before Python starts, or start the run from a script."
    ]


def _let_idle_threads_sleep() -> None:
    """Make GNU's OpenMP put idle threads to sleep at once, although it was loaded without ``GOMP_SPINCOUNT``.

    It reads that variable when it is loaded, and by default an idle thread spins so long that next to anything else on
    the machine a small model runs about ten times slower. But where it manages more threads than there are processors
    its threads hardly spin (``gomp_throttled_spin_count_var`` in libgomp's wait.h). So one thread that has used its
    own set of them once, and stays, has the same effect; where the sets of both threads together are no more than the
    processors, there are enough for all.
    """
    if _crowd or torch.get_num_threads() < 2 or not sys.platform.startswith("linux"):
        return
    used = threading.Event()

    def use_and_stay() -> None:
        values = torch.zeros(1 << 20)
        values.add_(1.0)
        used.set()
        threading.Event().wait()

    _crowd.append(threading.Thread(target=use_and_stay, name="roll-idle", daemon=True))
    _crowd[0].start()
    used.wait()
