"""Masked sums, means and whitening. Values under a zero mask never reach a result, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_SLAB_ELEMENTS = 1 << 18  # 1 MiB of float32


def as_bool(mask: Tensor) -> Tensor:
    """Return ``mask``, of any shape, as bool: nonzero is trained."""
    return mask if mask.dtype == torch.bool else mask != 0


def blank(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``values`` with 0 where ``mask`` is 0, also where they are infinite or NaN, and no gradient there.

    Both may have any shape, as long as one spreads over the other.
    """
    inside = as_bool(mask)
    if (
        values.numel() >= _WORTH_IT
        and values.device.type == "cpu"
        and values.dtype in _BITS
        and values.shape == mask.shape
    ):
        return _Blank.apply(values, inside)
    return torch.where(inside, values, torch.zeros((), dtype=values.dtype, device=values.device))


_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_WORTH_IT = 1 << 14
"""Elements from which the way through bits is faster, measured."""


class _Blank(torch.autograd.Function):
    """The same through bits: PyTorch's selection by a bool mask is not vectorised on processors, six times slower."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inside: Tensor) -> Tensor:
        ctx.save_for_backward(inside)
        bits = _bits(inside, values.dtype)
        return bits.bitwise_and_(values.view(bits.dtype)).view(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return blank(gradients[0], *ctx.saved_tensors), None


def _bits(inside: Tensor, dtype: torch.dtype) -> Tensor:
    """Return all ones where ``inside`` is true, none elsewhere, in integers as wide as ``dtype``."""
    return inside.view(torch.int8).neg().to(_BITS[dtype])


class Blanking:
    """:func:`blank` of many tensors by one mask, without gradients, into tensors that there are already.

    Attributes:
        inside: The mask, bool.
    """

    def __init__(self, mask: Tensor) -> None:
        """Prepare for tensors of the shape of ``mask``, which is nonzero where they are kept."""
        self.inside = as_bool(mask)
        self._bits: dict[torch.dtype, Tensor] = {}

    def into(self, out: Tensor, values: Tensor) -> Tensor:
        """Write ``values``, 0 outside the mask, to ``out``, which may be the same tensor, and return it.

        Both may have any shape, as long as it is that of the mask.
        """
        if self.inside.device.type != "cpu" or values.dtype not in _BITS:
            return out.copy_(blank(values, self.inside))
        if values.dtype not in self._bits:
            self._bits[values.dtype] = _bits(self.inside, values.dtype)
        bits = self._bits[values.dtype]
        torch.bitwise_and(values.view(bits.dtype), bits, out=out.view(bits.dtype))
        return out


def broadcast(per_sample: Tensor, mask: Tensor) -> Tensor:
    """Spread ``[batch]`` over the tokens of ``mask`` ``[batch, sequence]``; 0 elsewhere."""
    return blank(per_sample.unsqueeze(-1).expand(mask.shape), mask)


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of ``values`` over the tokens of ``mask``, over all of them or along ``dim``.

    Both are ``[batch, sequence]``, the sum a scalar, or ``[batch]`` for ``dim`` 1.
    """
    if values.dim() != 2 or values.shape != mask.shape:
        kept = blank(values, mask)
        return kept.sum() if dim is None else kept.sum(dim)
    if dim is None:
        return by_slabs(lambda *block: blank(*block).sum().unsqueeze(0), values, mask).sum()
    return by_slabs(lambda *block: blank(*block).sum(dim), values, mask)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of ``values`` over the tokens of ``mask``, over all of them or along ``dim``; 0 where there are none.

    Both are ``[batch, sequence]``, the mean a scalar, or ``[batch]`` for ``dim`` 1.
    """
    count = torch.count_nonzero(mask) if dim is None else as_bool(mask).sum(dim)
    return masked_sum(values, mask, dim) / count.clamp_min(1)


def slabs(tensor: Tensor) -> Iterator[slice]:
    """Split the rows of ``[batch, sequence]`` into blocks that stay in the processor's cache together with temporaries.

    Passes over such blocks run several times faster than passes over fresh batch-sized temporaries, and memory stays
    flat. An accelerator gets everything at once.
    """
    rows, height = tensor.shape[0], slab_height(tensor)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def by_slabs(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return what ``function`` makes of tensors ``[batch, sequence]``, called with a block of rows of each.

    Args:
        function: Its result has what it makes of a row behind what it makes of those before.
        tensors: Of the same shape, at least one.
    """
    height = slab_height(tensors[0])
    if tensors[0].shape[0] <= height:
        return function(*tensors)
    return torch.cat([function(*block) for block in zip(*(each.split(height) for each in tensors), strict=True)])


def tokens_per_row(mask: Tensor) -> Tensor:
    """Return the number of tokens in each row of a mask ``[batch, sequence]``, ``[batch]`` int64."""
    return by_slabs(lambda inside: inside.sum(1), as_bool(mask))


def marked_rows(mask: Tensor, values: Tensor | None = None) -> Tensor:
    """Return which rows of a mask ``[batch, sequence]`` have a token, ``[batch]`` bool.

    Counted, because PyTorch's ``any`` of each row takes three times as long on processors.

    Args:
        mask: Nonzero on the tokens that count.
        values: ``[batch, sequence]``; tokens where it is 0 do not count.
    """
    if values is None:
        return tokens_per_row(mask) > 0
    return by_slabs(lambda inside, value: (_nonzero(value) & inside).sum(1), as_bool(mask), values) > 0


def _nonzero(values: Tensor) -> Tensor:
    # On processors NumPy compares several numbers at once, PyTorch does not.
    plain = values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64)
    return torch.from_numpy(values.detach().numpy() != 0) if plain else values != 0


def slab_height(tensor: Tensor) -> int:
    """Return the number of rows of such a block of ``[batch, sequence]``, at least 1."""
    if tensor.device.type != "cpu":
        return max(tensor.shape[0], 1)
    return max(_SLAB_ELEMENTS // max(tensor.shape[1], 1), 1)


@torch.no_grad()
def masked_whiten(x: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Whiten over the tokens of ``mask``: ``(x - mean) * rsqrt(var + 1e-8)``, variance with Bessel's correction.

    Args:
        x: ``[batch, sequence]`` float.
        mask: ``[batch, sequence]``, nonzero on the tokens that count.
        shift_mean: With ``False`` the mean is added back, so that only the scale changes.

    Returns:
        ``[batch, sequence]``, 0 outside the mask. With at most one token in the mask, ``x`` itself, unchanged.

    Source: PPO implementation details, Huang et al. 2022 (advantage normalisation).
    """
    inside = as_bool(mask)
    count = int(torch.count_nonzero(inside))
    if count <= 1:
        return x
    double = torch.float64
    zero = torch.zeros((), dtype=double, device=x.device)
    total = sum((blank(x[rows], inside[rows]).sum(dtype=double) for rows in slabs(x)), start=zero)
    mean = (total / count).to(x.dtype)
    # The mean is rounded to the dtype of x. Without the remainder, equal values would keep a residue of one rounding
    # step, which rsqrt(1e-8) turns into visible noise with one sign.
    remainder, squares = zero, zero
    for rows in slabs(x):
        centred = blank(x[rows] - mean, inside[rows])
        remainder = remainder + centred.sum(dtype=double)
        squares = squares + centred.square_().sum(dtype=double)
    remainder = remainder / count
    variance = (squares - count * remainder.square()).clamp_min(0.0) / (count - 1)
    scale = torch.rsqrt(variance + 1e-8).to(x.dtype)
    remainder = remainder.to(x.dtype)
    result = torch.empty_like(x)
    for rows in slabs(x):
        centred = (x[rows] - mean).sub_(remainder).mul_(scale)
        if not shift_mean:
            centred.add_(mean)
        Blanking(inside[rows]).into(result[rows], centred)
    return result
