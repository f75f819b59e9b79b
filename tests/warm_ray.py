"""Ray's workers, forked from a warm process: what Ray starts in the place of ``python`` (``RAY_RUNTIME_ENV_HOOK``).

A worker of a run spends six to ten seconds of processor time on imports, a small run two on all the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path[0] = str(_HERE.parents[1])
from tests.programs import FOLDER_VARIABLE, connect, start  # noqa: E402  (found from here too, when Ray starts this file)

KIND = "ray worker"
_READ_BY_LOADERS = ("LD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "MKL_")
"""How variables begin that a process reads when it starts: those of the warm process are as the tests'."""


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether the warm process can stand for a new one with these variables.

    Some of what it imports computes: with more than one thread, others would be there when it forks.
    """
    if FOLDER_VARIABLE not in environment or environment.get("OMP_NUM_THREADS") != "1":
        return False
    return not any(name.startswith(_READ_BY_LOADERS) for name in environment)


def hook(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Have Ray start this file in the place of ``python``; called by ``ray.init``."""
    if not can_fork(os.environ):
        return runtime_env or {}
    connect(KIND, os.environ).close()  # started here: Ray ends with a cluster whatever its workers started
    return {"py_executable": f"{sys.executable} -SE {_HERE}", **(runtime_env or {})}


def main() -> int:
    """Run the worker whose command line these words are, to its end."""
    if not can_fork(os.environ):
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    return start(KIND, sys.argv[1:], Path.cwd(), os.environ, [0, 1, 2]).wait()


if __name__ == "__main__":
    sys.exit(main())
