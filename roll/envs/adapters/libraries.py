"""Import of the libraries that adapters need."""

from __future__ import annotations

import importlib
from typing import Any

from roll.envs.errors import MissingDependencyError


def library(module: str, package: str) -> Any:
    """Return a module of a library.

    Args:
        module: What is imported.
        package: The name under which the library is installed.

    Raises:
        MissingDependencyError: If it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"it needs the package {package}, which cannot be imported ({error}). Try: pip install 'roll-rl[envs]', "
            f"or {package} alone"
        ) from error
