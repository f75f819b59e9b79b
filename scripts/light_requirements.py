"""Print what the tests that need no PyTorch require (``make light``): the dependencies of pyproject.toml without it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_WITH_TORCH = {"torch", "tensordict"}
_FOR_NO_TEST = {"ruff", "mypy", "types-PyYAML", "import-linter", "pre-commit"}


def main() -> None:
    """Print one requirement per line."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    everything = [*project["dependencies"], *extras["dev"], *extras["envs"], *extras["monitoring"], *extras["sql"]]
    # The other extras of the project itself are its engines.
    wanted = [line for line in everything if _name(line) not in _WITH_TORCH | _FOR_NO_TEST | {project["name"]}]
    sys.stdout.write("\n".join(wanted) + "\n")


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    main()
