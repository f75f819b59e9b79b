"""Lets torchvision be imported beside a CPU build of PyTorch, for which PyPI has no build of it.

Its compiled library needs CUDA and is left out, so the operators that it registers a shape rule for are unknown to
PyTorch, which makes importing it fail. They are declared here, without code, when somebody is about to import it.
SGLang imports torchvision for models that see pictures.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeTorchvision(MetaPathFinder):
    """Declares the operators the first time that torchvision is looked for; somebody else finds it."""

    library: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision" and self.library is None:
            import torch

            # Kept: the declarations go when it does.
            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(operator + _BOXES)


def install() -> None:
    """Wait for torchvision to be imported; imports nothing by itself. Python may read a .pth file twice."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())
