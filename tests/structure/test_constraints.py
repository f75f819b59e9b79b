"""Whether every version that `make` installs can be, and is one that pyproject.toml allows."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def pinned_packages() -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


@pytest.mark.processes
def test_the_oldest_versions_are_those_of_the_project_and_not_newer_than_what_is_pinned() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "requirements.py"), "oldest"]
    oldest = [Requirement(line) for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines()]
    allowed = {each.name: each.specifier for each in map(Requirement, project()["dependencies"])}
    assert {each.name for each in oldest} == set(allowed) - {"torch", "tensordict"}
    pinned = {canonicalize_name(package.name): package.specifier for package in pinned_packages()}
    for each in oldest:
        (version,) = each.specifier
        assert version.operator == "==" and version.version in allowed[each.name], each
        (used,) = pinned[canonicalize_name(each.name)]
        assert Version(version.version) <= Version(used.version), each


def test_every_pinned_package_takes_the_oldest_python_that_roll_takes() -> None:
    wanted = project()["requires-python"]
    oldest = f"{wanted.removeprefix('>=')}.0"
    pinned = pinned_packages()
    refused, known = {}, 0
    for package in pinned:
        try:
            there = importlib.metadata.distribution(package.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # pinned for an extra that is not installed here
        known += 1
        takes = there.metadata["Requires-Python"] if "Requires-Python" in there.metadata else None
        if takes and there.version in package.specifier and oldest not in SpecifierSet(takes):
            refused[f"{package.name}=={there.version}"] = takes
    assert not refused
    assert known > len(pinned) / 2
