"""Tensors over memory that nobody may write into."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from numpy.typing import NDArray


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """Return the same array, of any shape, as a tensor, without the warning of PyTorch that it could write there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)
