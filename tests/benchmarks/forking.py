"""Runs a program whose processes are forks of it: ``python forking.py PROGRAM [ARGUMENT …]``.

One that is spawned imports again what the program has imported: in a benchmark of the size of a test, most of the time.
"""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from pathlib import Path

fork = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
