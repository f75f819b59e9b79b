"""Products of linear layers on CPUs, where those of PyTorch are far from what the machine can do.

Two cases, both of models too large for the cache, so that a step reads every weight from memory:

* Few rows, as in steps that sample for few requests. A product with rows on the left reads weights at a third of the
  speed of memory; with the weights on the left, and at least two rows, it comes near to it.
* bf16 where neither the processor nor oneDNN multiplies it: PyTorch falls back to a plain loop, from 16 rows on two to
  four times slower than to widen a block of weights that stays in the cache and multiply in fp32. Both sum in fp32.

Smaller models keep PyTorch's products, and with them their results to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Of rows, weights and a bias, as ``torch.nn.functional.linear``."""

_LEAST_BYTES = 32 << 20
"""Of all linear weights; what is less may stay in the cache of a processor between two steps."""

_BLOCK_NUMBERS = 1 << 20
"""Of widened weights: 4 MB."""

_FEW, _FEW_FOR_ONE_THREAD = 8, 4
"""Rows up to which weights on the left are quicker."""

_FEW_IN_BF16 = 8
"""Rows up to which PyTorch's loop for bf16 is not slower than widened weights."""


def quicken(model: nn.Module) -> None:
    """Have the linear layers of a large model on a CPU compute their products as above, in inference.

    Args:
        model: Changed in place; its parameters are not.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear and module.weight.device.type == "cpu"]
    if sum(layer.weight.nbytes for layer in layers) < _LEAST_BYTES:
        return
    products: dict[torch.dtype, Product] = {torch.float32: few_rows_product}
    if torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        # Memory that is asked for anew each time may come without pages, and take longer than the product.
        products[torch.bfloat16] = partial(widened_product, block=torch.empty(_BLOCK_NUMBERS))
    for layer in layers:
        product = products.get(layer.weight.dtype)
        if product is not None:
            layer.forward = partial(_forward, layer, product)  # type: ignore[method-assign]


def _forward(layer: nn.Linear, product: Product, x: Tensor) -> Tensor:
    return product(x, layer.weight, layer.bias)


def few_rows_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what ``torch.nn.functional.linear`` does, quicker where ``x`` has few rows.

    Args:
        x: ``[..., inputs]`` float32.
        weight: ``[outputs, inputs]``.
        bias: ``[outputs]``.

    Returns:
        ``[..., outputs]``.
    """
    rows = x.numel() // x.shape[-1]
    if not 0 < rows <= (_FEW if torch.get_num_threads() > 1 else _FEW_FOR_ONE_THREAD):
        return linear(x, weight, bias)
    flat = x.reshape(rows, x.shape[-1])
    if rows == 1:
        flat = torch.cat((flat, flat))  # one column would be a product with a vector, which is as slow
    product = torch.mm(weight, flat.t())[:, :rows].t().contiguous().view(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product.add_(bias)


def widened_product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, block: Tensor) -> Tensor:
    """Return what ``torch.nn.functional.linear`` does, in fp32 where ``x`` has more than a few rows.

    Args:
        x: ``[..., inputs]`` bfloat16.
        weight: ``[outputs, inputs]``.
        bias: ``[outputs]``.
        block: ``[numbers]`` float32, at least ``inputs`` of them; written to.

    Returns:
        ``[..., outputs]`` bfloat16.
    """
    if x.numel() // x.shape[-1] <= _FEW_IN_BF16:
        return linear(x, weight, bias)
    outputs, inputs = weight.shape
    wide, parts, rows = x.float(), [], block.numel() // inputs
    for first in range(0, outputs, rows):
        chosen = weight[first : first + rows]
        widened = block[: chosen.numel()].view(chosen.shape).copy_(chosen)
        own = None if bias is None else bias[first : first + rows].float()
        parts.append(linear(wide, widened, own).to(x.dtype))
    return torch.cat(parts, dim=-1)
