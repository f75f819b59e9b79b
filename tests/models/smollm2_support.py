"""A mark for tests with the real model: left out where its package is missing, except in CI, which installs it."""

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from roll.models.smollm2 import PACKAGE


def _is_installed() -> bool:
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        return False
    return importlib.util.find_spec("gguf") is not None


needs_smollm2 = pytest.mark.skipif(not _is_installed() and "CI" not in os.environ, reason="make smollm installs it")
