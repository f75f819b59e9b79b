"""Print what a part of the tests requires, from the dependencies of pyproject.toml: ``requirements.py light|oldest``.

``light`` is for those that need no PyTorch (``make light``). ``oldest`` are the oldest versions that are allowed of
what every run needs (``make test-oldest``), PyTorch aside: its old versions are published with CUDA.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_WITH_TORCH = {"torch", "tensordict"}
_FOR_NO_TEST = {"ruff", "mypy", "types-PyYAML", "import-linter", "pre-commit"}


def light(project: dict[str, Any]) -> list[str]:
    """Return the requirements of tests without PyTorch."""
    extras = project["optional-dependencies"]
    everything = [*project["dependencies"], *extras["dev"], *extras["envs"], *extras["monitoring"], *extras["sql"]]
    # The other extras of the project itself are its engines.
    return [line for line in everything if _name(line) not in _WITH_TORCH | _FOR_NO_TEST | {project["name"]}]


def oldest(project: dict[str, Any]) -> list[str]:
    """Return ``name==version`` for each package of the core."""
    lines = [line for line in project["dependencies"] if _name(line) not in _WITH_TORCH]
    return [line.partition(",")[0].replace(">=", "==") for line in lines]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    wanted = {"light": light, "oldest": oldest}[sys.argv[1]](tomllib.loads(text)["project"])
    sys.stdout.write("\n".join(wanted) + "\n")
