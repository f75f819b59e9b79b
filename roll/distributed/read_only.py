"""Tensors over memory that nobody may write into."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from numpy.typing import NDArray


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor in the same memory. PyTorch would warn: nothing keeps it from writing there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)
