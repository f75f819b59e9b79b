"""Modules of a user's own that a configuration names, because they register something when they are imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from roll.config.errors import Absent, Problem


def import_problems(key: str, modules: Iterable[str]) -> Iterator[Problem]:
    """Import modules, from the working directory too, as ``python -m`` would; yield what went wrong.

    Args:
        key: The key that names them, for errors.
        modules: Their names.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            kind: type[Problem] = Absent
            fix = f"install the package, or start from the folder that holds it (this one is {here})."
            if not (isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))):
                kind = Problem
                fix = f"correct the module; `python -c 'import {name}'` shows where it fails."
            yield kind(key, f"cannot import {name}: {type(error).__name__}: {error}.", fix, name)


def imported(modules: list[str]) -> list[str]:
    """Return the names of modules, and import them now: other keys name what they register.

    A configuration can be read where they are not; :func:`roll.config.require_runnable` reports those that are missing.
    """
    for _ in import_problems("", modules):
        continue
    return modules
