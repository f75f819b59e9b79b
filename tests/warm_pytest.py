"""Processes of pytest-xdist, forked from a warm one: what execnet starts in the place of ``python``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path[0] = str(_HERE.parents[1])
from tests.programs import start  # noqa: E402  (found from here too, when execnet starts this file)

PYTHON = f"{sys.executable} -SE {_HERE}"
"""What to start, and with it the one process from which all are forked."""


def main() -> int:
    """Run ``-u -c PROGRAM``, to its end."""
    words = [word for word in sys.argv[1:] if word != "-u"]
    return start("tests", words, Path.cwd(), {**os.environ, "OMP_NUM_THREADS": "1"}, [0, 1, 2]).wait()


if __name__ == "__main__":
    sys.exit(main())
