"""How a user calls this program: the first words of every command that it prints."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def own_words() -> list[str]:
    """Return ``["roll"]`` where that starts this program, else the path of it, or ``python -m roll``."""
    from roll.pipelines.run.command import python, shown

    called = Path(sys.argv[0])
    if called.stem != "roll":
        return [python(), "-m", "roll"]
    found = shutil.which("roll")
    return ["roll"] if found is not None and Path(found).absolute() == called.absolute() else [str(shown(called))]
