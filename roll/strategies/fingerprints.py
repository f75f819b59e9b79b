"""Fingerprints of weights: small enough to send, and the same whatever form an engine keeps a matrix in.

Of a matrix it is the product with a fixed vector of signs. An engine that has packed, fused or divided its weights
cannot show them, but it can still multiply with them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Fingerprints = dict[str, Tensor]
"""By Hugging Face name, ``[values]`` float32 in main memory."""

_PIECE = 2**24
"""Most values of a matrix that are converted to float32 at once."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A tensor that an engine does not have as the trainer has it.

    Attributes:
        name: Hugging Face name.
        size: Largest difference of the fingerprints, relative to the trainer's largest value; ``None`` where they have
            different lengths.
    """

    name: str
    size: float | None

    def __str__(self) -> str:
        """Name and size."""
        return self.name if self.size is None else f"{self.name} (by {self.size:.2g} of its size)"


def fingerprint(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the fingerprint of a tensor, ``[values]`` float32 in main memory.

    Args:
        weight: A matrix, ``[..., columns]``, of which it is one number per row; or a vector, of which it is a copy.
        dtype: What the values are rounded to first, as on their way to an engine.
    """
    values = weight.detach()
    if values.ndim < 2:
        return _rounded(values, dtype).cpu().clone()
    rows = values.reshape(-1, values.shape[-1])
    vector = signs(rows.shape[-1]).to(rows.device)
    pieces = [_rounded(piece, dtype) @ vector for piece in rows.split(max(_PIECE // max(rows.shape[-1], 1), 1))]
    return torch.cat(pieces).cpu()


@functools.lru_cache(64)
def signs(width: int) -> Tensor:
    """Return the vector ``[width]`` that matrices with so many columns are multiplied with: +1 or -1, always exact."""
    generator = torch.Generator().manual_seed(width)
    return torch.randint(0, 2, (width,), generator=generator).float() * 2 - 1


def deviations(
    trainer: Mapping[str, Tensor], engine: Mapping[str, Tensor], tolerance: float
) -> tuple[list[Deviation], int]:
    """Compare fingerprints.

    Args:
        trainer: Of the weights that were sent, ``[values]`` each, by name.
        engine: Of the weights that an engine computes with; names that only one side has are passed over.
        tolerance: Largest difference, relative to the trainer's largest value, that is rounding.

    Returns:
        Tensors that differ, in the trainer's order, which is that of the layers; how many were compared.
    """
    shared = [name for name in trainer if name in engine]
    found: list[Deviation] = []
    for name in shared:
        sent, has = trainer[name], engine[name]
        if sent.shape != has.shape:
            found.append(Deviation(name, None))
            continue
        difference = _largest(sent - has) / max(_largest(sent), 1e-12)
        # Not ">": what is no number differs.
        if not difference <= tolerance:
            found.append(Deviation(name, difference))
    return found, len(shared)


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _rounded(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is not None and values.dtype.is_floating_point:
        values = values.to(dtype)
    return values.float()
