"""Runs of pytest inside a test, with one of our plugins and no other configuration than their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(plugin: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with a plugin, in a new Python: the warm one needs PyTorch, which may not be there.

    What it says, also of errors, is in ``stdout``.
    """
    path = os.pathsep.join([str(ROOT), str(folder)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", *words, "."]
    # To a file: a pipe would stay open in the warm process that others are forked from, where this starts it.
    with TemporaryFile("w+") as said:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, timeout=60)
        said.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, said.read())
