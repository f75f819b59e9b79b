"""Packages that offer names of their modules, and import a module when the first of its names is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def offered(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package (PEP 562).

    Args:
        package: Its ``__name__``.
        names: What it offers, and the module that each comes from.
    """
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = namespace[name] = getattr(import_module(names[name]), name)
        return found

    def listed() -> list[str]:
        return sorted({*namespace, *names})

    return get, listed
