"""Ray's workers, forked from a warm process: what Ray starts in the place of ``python`` (``RAY_RUNTIME_ENV_HOOK``).

A worker of a run spends six to ten seconds of processor time on imports, a small run two on all the rest. Where a test
starts Ray too, this file is also what Ray starts before each worker: Ray's own imports Ray, for a second, to read two
words.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path[0] = str(_HERE.parents[1])
from tests.programs import FOLDER_VARIABLE, OWNER_VARIABLE, connect, start  # noqa: E402  (found from here too, when Ray starts this file)

KIND = "worker"
_PYTHON = f"{sys.executable} -SE {_HERE}"
_READ_BY_LOADERS = ("LD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "MKL_")
"""How variables begin that a process reads when it starts: those of the warm process are as the tests had them."""


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether the warm process can stand for a new one with these variables.

    Some of what it imports computes: with more than one thread, others would be there when it forks.
    """
    if FOLDER_VARIABLE not in environment or environment.get("OMP_NUM_THREADS") != "1":
        return False
    had = Path("/proc", environment[OWNER_VARIABLE], "environ").read_text(errors="surrogateescape").split("\0")
    return {f"{name}={value}" for name, value in environment.items() if name.startswith(_READ_BY_LOADERS)} == {
        each for each in had if each.startswith(_READ_BY_LOADERS)
    }


def hook(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Have Ray start this file in the place of ``python``; called by ``ray.init``."""
    if not can_fork(os.environ):
        return runtime_env or {}
    connect(KIND, os.environ).close()  # started here: Ray ends with a cluster whatever its workers started
    set_up_here()
    return {"py_executable": _PYTHON, **(runtime_env or {})}


def set_up_here() -> None:
    """Have a machine of Ray that this process starts run this file where Ray has ``setup_worker.py``."""
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = str(_HERE)  # joined to a folder, an absolute path stays itself


def worker_of(words: Sequence[str]) -> list[str] | None:
    """Return the words behind ``python`` of the worker that Ray wants set up; ``None`` if it needs more than ours.

    Args:
        words: The worker's own, and those that Ray adds to have it set up: its language, and its environment as JSON.
    """
    language, environment = "--language=", "--serialized-runtime-env-context="
    asked = {word.partition("=")[0] + "=": word.partition("=")[2] for word in words}
    wanted = json.loads(asked.get(environment) or "{}")
    ours = {"py_executable": _PYTHON}
    if asked.get(language) != "PYTHON" or {key: value for key, value in wanted.items() if value} != ours:
        return None
    return [word for word in words if not word.startswith((language, environment))]


def main() -> int:
    """Run the worker whose command line these words are, to its end."""
    words = sys.argv[1:]
    if any(word.startswith("--language=") for word in words):
        found = worker_of(words)
        if found is None:
            ray = importlib.util.find_spec("ray")
            assert ray is not None and ray.origin is not None
            script = Path(ray.origin).with_name("_private") / "workers" / "setup_worker.py"
            os.execv(sys.executable, [sys.executable, str(script), *words])
        words = found
    if not can_fork(os.environ):
        os.execv(sys.executable, [sys.executable, *words])
    return start(KIND, words, Path.cwd(), os.environ, [0, 1, 2]).wait()


if __name__ == "__main__":
    sys.exit(main())
