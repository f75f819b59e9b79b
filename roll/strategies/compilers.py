"""What ``torch.compile`` calls to make kernels, which may be missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import torch


def missing_compiler(device: torch.device) -> str | None:
    """Return what is missing to compile for ``device``, in words; ``None`` if nothing is.

    For a CPU that is a C++ compiler or Python's headers, for another device Triton.
    """
    if device.type != "cpu":
        if importlib.util.find_spec("triton") is None:
            return f"compiling for {device.type} needs Triton, which is not installed"
        return None
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"compiling for CPUs needs a C++ compiler, and {compiler!r} is not on PATH"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"compiling for CPUs needs Python's headers, and {headers} has no Python.h"
    return None
