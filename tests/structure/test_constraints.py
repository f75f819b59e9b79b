"""Whether every version that `make` installs can be: Debian 12 has Python 3.11.2, and some packages want more."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]


def test_every_pinned_package_takes_the_oldest_python_that_roll_takes() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = f"{wanted.removeprefix('>=')}.0"
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pinned = [Requirement(line) for line in lines if line]
    refused, known = {}, 0
    for package in pinned:
        try:
            there = importlib.metadata.distribution(package.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # pinned for an extra that is not installed here
        known += 1
        takes = there.metadata["Requires-Python"]
        if takes and there.version in package.specifier and oldest not in SpecifierSet(takes):
            refused[f"{package.name}=={there.version}"] = takes
    assert not refused
    assert known > len(pinned) / 2
