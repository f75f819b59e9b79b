"""Discounted sums along the sequence, over the tokens of a mask: a blocked linear recurrence, one product per block.

Within a block of ``K`` tokens, what follows each of them is a product with one ``K x K`` matrix of powers of the decay.
The sums at the first tokens of the blocks follow the same recurrence, with the decay to the power of the block's
tokens, and are few. Nothing divides by a power, so that decay 0 and 1 are exact. Tokens outside the mask are no steps:
a block that is all mask or all gap needs no more than that, and in the others, where a gap begins or ends, the tokens
of the mask are moved side by side first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from roll.algorithms.masking import Blanking

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
    if decay == 0.0:
        return x.clone()

    def scan(wide: Tensor) -> Tensor:
        if wide.shape[1] <= _BLOCK:
            return torch.mm(wide, _matrix(_powers(decay, wide), wide.shape[1]))
        return wide.add(_blocked(wide, None, decay), alpha=decay)

    return _in_full_precision(scan, x, decay)


def sums_after(x: Tensor, within: Blanking | None, decay: float) -> Tensor:
    """Return the discounted sum of what follows each token: ``y[:, t] = x[:, n] + decay * y[:, n]``.

    ``n`` is the next token of the mask after ``t``; ``y`` is 0 where none follows.

    Args:
        x: ``[batch, sequence]`` float; only tokens of the mask are read.
        within: Of the mask ``[batch, sequence]`` of the tokens that count; without it all do.
        decay: In [0, 1].

    Returns:
        ``[batch, sequence]`` in the dtype of ``x``, finite but without a meaning outside the mask; half precision is
        computed in float32.

    Raises:
        ValueError: ``decay`` lies outside [0, 1].
    """
    return _in_full_precision(lambda wide: _blocked(wide, within, decay), x, decay)


def _in_full_precision(function: Callable[[Tensor], Tensor], x: Tensor, decay: float) -> Tensor:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"a discount must lie in [0, 1], got {decay}: check gamma and lambd.")
    if x.numel() == 0:
        return x.clone()
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    # TensorFloat-32 or bfloat16 products would cost three digits; float64 products are never lowered.
    if x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        x = x.double()
    with torch.autocast(device_type=x.device.type, enabled=False):
        return function(x).to(dtype)


def _blocked(x: Tensor, within: Blanking | None, decay: float) -> Tensor:
    rows, length = x.shape
    # A block of zeros ends every row: then rows may follow each other as one sequence.
    blocks = -(-length // _BLOCK) + 1
    sequence = x.new_empty(rows * blocks * _BLOCK + 1)
    sequence[-1] = 0.0
    cells = sequence[:-1].view(rows * blocks, _BLOCK)
    table = cells.view(rows, blocks * _BLOCK)
    table[:, length:] = 0.0
    powers = _powers(decay, x)
    gaps = None
    if within is None:
        table[:, :length] = x
        heads = torch.mv(cells, powers[:-1])
        spans = powers[-1].expand(rows, blocks)
    else:
        within.into(table[:, :length], x)
        padded = pad(within.inside, (0, blocks * _BLOCK - length)).view(cells.shape)
        counts = _counts(padded)
        heads = torch.mv(cells, powers[:-1])
        spans = powers[counts].view(rows, blocks)
        gaps = _Gaps.of(padded, counts)
        if gaps is not None:
            gaps.close(cells, heads, powers)
    cells.view(rows, blocks, _BLOCK)[:, :, 0] = _carried(heads.view(rows, blocks), spans)
    # Everything one token earlier: each block ends with what the next one begins with, which is already whole.
    result = torch.mm(sequence[1:].view(cells.shape), _matrix(powers, _BLOCK))
    if gaps is not None:
        gaps.open(result)
    return result.view(rows, -1)[:, :length]


def _powers(decay: float, like: Tensor) -> Tensor:
    """Return ``decay`` to the powers 0 to ``K``, ``[K + 1]``."""
    powers = decay ** torch.arange(_BLOCK + 1, dtype=torch.float64, device=like.device)
    return torch.where(powers < _TINY, 0.0, powers).to(like.dtype)


def _matrix(powers: Tensor, size: int) -> Tensor:
    """Return the matrix ``[size, size]`` that adds to each token what follows it, times powers of the decay."""
    steps = torch.arange(size, device=powers.device)
    distance = steps.unsqueeze(1) - steps
    return torch.where(distance >= 0, powers[distance.clamp_min(0)], 0.0)


def _carried(heads: Tensor, spans: Tensor) -> Tensor:
    """Solve ``y[:, b] = heads[:, b] + spans[:, b] * y[:, b + 1]`` over ``[batch, blocks]`` by doubling.

    The last block of every row must be 0.
    """
    blocks, reach = heads.shape[1], 1
    # Past the last block there is nothing. Time first: then what is moved is one stretch of memory.
    sums, spans = pad(heads.t(), (0, 0, 0, blocks)), pad(spans.t(), (0, 0, 0, blocks))
    farther, wider = torch.zeros_like(sums), torch.zeros_like(spans)
    while reach < blocks:
        shifted = slice(reach, reach + blocks)
        torch.addcmul(sums[:blocks], spans[:blocks], sums[shifted], out=farther[:blocks])
        torch.mul(spans[:blocks], spans[shifted], out=wider[:blocks])
        sums, spans, farther, wider, reach = farther, wider, sums, spans, 2 * reach
    return sums[:blocks].t()


def _counts(cells: Tensor) -> Tensor:
    """Return how many are true in each row of ``[blocks, K]`` bool, ``[blocks]`` int64: eight bytes at a time."""
    words = cells.contiguous().view(torch.int64)
    sums = words[:, 0] + words[:, 1]
    for column in range(2, words.shape[1]):
        sums += words[:, column]
    for shift in (32, 16, 8):  # no byte ever exceeds K
        sums += sums >> shift
    return sums & 0xFF


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The blocks that are neither all mask nor all gap.

    Attributes:
        blocks: ``[gaps]`` int64, which they are.
        target: ``[gaps, K]`` int64, where each token goes so that those of the mask end the block side by side;
            ``K`` for tokens outside the mask.
        rank: ``[gaps, K]`` int64, how many tokens of the mask come before each in its block.
    """

    blocks: Tensor
    target: Tensor
    rank: Tensor

    @classmethod
    def of(cls, cells: Tensor, counts: Tensor) -> _Gaps | None:
        """Find them in ``cells`` ``[blocks, K]`` with these ``counts`` ``[blocks]``; ``None`` if there are none."""
        blocks = ((counts > 0) & (counts < _BLOCK)).nonzero().squeeze(1)
        if blocks.numel() == 0:
            return None
        inside = cells.index_select(0, blocks)
        upto = inside.cumsum(1)
        target = torch.where(inside, upto + (_BLOCK - 1 - counts[blocks]).unsqueeze(1), _BLOCK)
        return cls(blocks, target, upto.sub_(inside.to(upto.dtype)))

    def close(self, cells: Tensor, heads: Tensor, powers: Tensor) -> None:
        """Move tokens of ``cells`` ``[blocks, K]``, 0 outside the mask, and set ``heads`` ``[blocks]``, in place."""
        chosen = cells.index_select(0, self.blocks)
        heads[self.blocks] = (chosen * powers[self.rank]).sum(1)
        closed = chosen.new_zeros(chosen.shape[0], _BLOCK + 1).scatter_(1, self.target, chosen)
        cells.index_copy_(0, self.blocks, closed[:, :_BLOCK])

    def open(self, cells: Tensor) -> None:
        """Move tokens of ``cells`` ``[blocks, K]`` back, in place."""
        chosen = cells.index_select(0, self.blocks)
        cells.index_copy_(0, self.blocks, chosen.gather(1, self.target.clamp_max(_BLOCK - 1)))
