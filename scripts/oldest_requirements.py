"""Print the oldest versions that pyproject.toml allows of what every run needs (``make test-oldest``).

Without PyTorch and what is built for one version of it: those that are published for processors alone are few.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_BUILT_FOR_ONE = ("torch>", "tensordict>")


def oldest() -> list[str]:
    """Return one requirement per package, ``name==version``."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [line.partition(",")[0] for line in project["dependencies"] if not line.startswith(_BUILT_FOR_ONE)]
    return [bound.replace(">=", "==") for bound in bounds]


if __name__ == "__main__":
    sys.stdout.write("\n".join(oldest()) + "\n")
