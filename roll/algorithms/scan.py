"""Discounted sums along the sequence: a blocked linear recurrence, with gaps in the mask closed first.

The recurrence ``y[t] = x[t] + decay * y[t + 1]`` over a block of ``K`` tokens is a product with one ``K x K`` matrix of
powers of the decay; the first values of the blocks follow the same recurrence with ``decay ** K``, which is solved the
same way. That is two or three passes for any length met in practice, it never divides by a power, and it is exact for
decay 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roll.algorithms.masking import as_bool, blank

_BLOCK = 32
_TINY = 1e-30  # smaller powers change nothing in float32 and would only make the product run on denormal numbers


def reverse_scan(x: Tensor, decay: float) -> Tensor:
    """Solve ``y[:, t] = x[:, t] + decay * y[:, t + 1]`` with ``y`` 0 past the end.

    Args:
        x: ``[batch, sequence]`` float.
        decay: In [0, 1].

    Returns:
        ``[batch, sequence]`` in the dtype of ``x``; half precision is computed in float32.

    Raises:
        ValueError: ``decay`` lies outside [0, 1].
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"a discount must lie in [0, 1], got {decay}: check gamma and lambd.")
    if decay == 0.0 or x.numel() == 0:
        return x.clone()
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    # TensorFloat-32 or bfloat16 products would cost three digits; float64 products are never lowered.
    if x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        x = x.double()
    with torch.autocast(device_type=x.device.type, enabled=False):
        return _blocked(x, decay).to(dtype)


def _blocked(x: Tensor, decay: float) -> Tensor:
    """Solve the recurrence block by block; calls itself once per level, ``log(sequence) / log(block)`` levels."""
    batch, length = x.shape
    block = min(_BLOCK, length)
    padding = -length % block
    if padding:
        x = torch.nn.functional.pad(x, (0, padding))
    blocks = x.shape[1] // block
    steps = torch.arange(block, dtype=torch.float64, device=x.device)
    distance = steps.unsqueeze(1) - steps.unsqueeze(0)
    matrix = torch.where(distance >= 0, decay ** distance.clamp_min(0), 0.0)
    matrix = torch.where(matrix < _TINY, 0.0, matrix).to(x.dtype)
    solved = (x.reshape(batch * blocks, block) @ matrix).view(batch, blocks, block)
    if blocks > 1:
        heads = _blocked(solved[:, :, 0], decay**block)
        reach = decay ** (block - steps)
        reach = torch.where(reach < _TINY, 0.0, reach).to(x.dtype)
        solved[:, :-1].addcmul_(heads[:, 1:].unsqueeze(-1), reach)
    return solved.view(batch, -1)[:, :length]


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the tokens of a mask go when the gaps between them are closed.

    Attributes:
        mask: ``[batch, sequence]`` bool.
        source: Flat positions of the tokens of the mask, int64; ``None`` where every row is one span already, so that
            nothing has to move.
        target: Flat positions of the same tokens with each row's tokens side by side at its left, int64.
    """

    mask: Tensor
    source: Tensor | None = None
    target: Tensor | None = None

    def pack(self, values: Tensor) -> Tensor:
        """Return ``values`` ``[batch, sequence]`` with the tokens of each row side by side in order, 0 elsewhere."""
        if self.source is None or self.target is None:
            return blank(values, self.mask)
        chosen = values.reshape(-1).index_select(0, self.source)
        return torch.zeros_like(values).view(-1).scatter_(0, self.target, chosen).view(values.shape)

    def unpack(self, values: Tensor, out: Tensor) -> None:
        """Put packed tokens back where they came from, into ``out``, which must be contiguous and 0.

        Both are ``[batch, sequence]``.
        """
        if self.source is None or self.target is None:
            out.copy_(blank(values, self.mask))
        else:
            out.view(-1).scatter_(0, self.source, values.reshape(-1).index_select(0, self.target))


def packing(mask: Tensor) -> Packing:
    """Plan how to close the gaps of ``mask`` ``[batch, sequence]`` (prompts, observations, padding)."""
    inside = as_bool(mask)
    rows, columns = inside.shape
    if columns < 3:
        return Packing(inside)
    starts = (inside[:, 1:] & ~inside[:, :-1]).sum(1) + inside[:, 0]
    if not bool((starts > 1).any()):
        return Packing(inside)
    source = inside.reshape(-1).nonzero().squeeze(1)
    counts = inside.sum(1)
    shift = torch.arange(rows, device=inside.device) * columns - (counts.cumsum(0) - counts)
    target = torch.repeat_interleave(shift, counts, output_size=source.numel())
    return Packing(inside, source, target.add_(torch.arange(source.numel(), device=inside.device)))
