"""Products of linear layers on CPUs, where those of PyTorch are far from what the machine can do.

Two cases, both of models too large for the cache, so that a step reads every weight from memory:

* Few rows, as in steps that sample for few requests. A product with rows on the left reads weights at a third of the
  speed of memory; with the weights on the left, and at least two rows, it comes near to it.
* bf16 where neither the processor nor oneDNN multiplies it: PyTorch falls back to a plain loop, from 16 rows on two to
  four times slower than to widen a block of weights that stays in the cache and multiply in fp32. Both sum in fp32.

Where memory allows a second copy of the weights, in the order in which oneDNN multiplies, products of more than a few
rows take two thirds of the time in fp32, and half of it in bf16 that is widened. Layers that are given the same rows,
as those of queries, keys and values are, then have one product.

Smaller models keep PyTorch's products, and with them their results to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from roll.strategies.generation.hf_infer import compiling
from roll.strategies.generation.hf_infer.options import UnusableOptionError

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

_FEW_FOR_ALL = 4
"""Rows up to which weights on the left, or the loop for bf16, are the product of every layer here, packed or not.

Not of packed weights in bf16 where the processor multiplies that: they are quicker from one row on.
"""

_PACKED_FOR_ROWS = 8
"""What oneDNN chooses the order of packed weights for; products of other numbers of rows are right too."""

_PACKED = (torch.float32, torch.bfloat16)
"""Types of weights that can be packed."""

_ONE_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names, in Hugging Face's models, of layers of one module that are given the same rows, in the order of the calls."""


class CannotPackError(UnusableOptionError):
    """Weights were to be packed that cannot be."""

    option = "pack_weights"


def check_packing(model: nn.Module) -> None:
    """Check that there is something to pack, and to pack it with.

    Args:
        model: Whose linear layers are to keep packed weights.

    Raises:
        CannotPackError: This PyTorch has no oneDNN, or no linear layer is on a CPU in fp32 or bf16.
    """
    if not torch.backends.mkldnn.is_available():
        raise CannotPackError("this build of PyTorch has no oneDNN, which packs weights")
    if not any(layer.weight.dtype in _PACKED for layer in _layers_on_cpu(model)):
        raise CannotPackError("only linear layers on a CPU, in fp32 or bf16, can have packed weights")


def _layers_on_cpu(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if type(module) is nn.Linear and module.weight.device.type == "cpu"]


def quicken(model: nn.Module, *, pack: bool = False) -> list[PackedWeights]:
    """Have the linear layers of a large model on a CPU compute their products as above, in inference.

    Args:
        model: Changed in place; its parameters are not.
        pack: Whether layers keep a second copy of their weights, made when it is first needed. Layers that multiply
            the same rows then have one product.

    Returns:
        What keeps those copies: to be told when weights have changed.
    """
    layers = _layers_on_cpu(model)
    if sum(layer.weight.nbytes for layer in layers) < _LEAST_BYTES:
        return []
    products: dict[torch.dtype, Product] = {torch.float32: few_rows_product}
    widens = torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if widens:
        # Memory that is asked for anew each time may come without pages, and take longer than the product.
        products[torch.bfloat16] = partial(widened_product, block=torch.empty(_BLOCK_NUMBERS))
    packed: list[PackedWeights] = []
    for together in _with_one_input(model, layers) if pack else [[layer] for layer in layers]:
        dtype = together[0].weight.dtype
        if pack and dtype in _PACKED:
            packed.append(PackedWeights(together, torch.float32 if widens else dtype))
            shared = SharedProduct(packed[-1])
            for place, layer in enumerate(together):
                layer.forward = partial(shared.part, place)  # type: ignore[method-assign]
        elif dtype in products:
            for layer in together:
                number = compiling.number(products[dtype])
                layer.forward = partial(_forward, layer, products[dtype], number)  # type: ignore[method-assign]
    return packed


def _with_one_input(model: nn.Module, layers: Sequence[nn.Linear]) -> list[list[nn.Linear]]:
    """Return the layers, those together that are called one after another with the same rows."""
    found: list[list[nn.Linear]] = []
    known = {id(layer): layer for layer in layers}
    for module in model.modules():
        for names in _ONE_INPUT:
            members = [known[id(member)] for name in names if id(member := getattr(module, name, None)) in known]
            if len(members) == len(names) and _are_alike(members):
                found.append(members)
                for member in members:
                    del known[id(member)]
    return found + [[layer] for layer in known.values()]


def _are_alike(layers: Sequence[nn.Linear]) -> bool:
    kinds = {(layer.in_features, layer.weight.dtype, layer.bias is None) for layer in layers}
    return len(kinds) == 1


def _forward(layer: nn.Linear, product: Product, number: int, x: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        return product(x, layer.weight, layer.bias)
    if _rows(x) <= _FEW_FOR_ALL:
        return _few_rows(x, layer.weight, layer.bias)
    return compiling.product(x, layer.weight, layer.bias, number)


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _weights_on_left(x, weight, bias) if x.dtype == torch.float32 else linear(x, weight, bias)


def _weights_on_left(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = _rows(x)
    flat = x.reshape(rows, x.shape[-1])
    if rows == 1:
        flat = torch.cat((flat, flat))  # one column would be a product with a vector, which is as slow
    product = torch.mm(weight, flat.t())[:, :rows].t().contiguous().view(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product.add_(bias)


def few_rows_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what ``torch.nn.functional.linear`` does, quicker where ``x`` has few rows.

    Args:
        x: ``[..., inputs]`` float32.
        weight: ``[outputs, inputs]``.
        bias: ``[outputs]``.

    Returns:
        ``[..., outputs]``.
    """
    if not 0 < _rows(x) <= (_FEW if torch.get_num_threads() > 1 else _FEW_FOR_ONE_THREAD):
        return linear(x, weight, bias)
    return _weights_on_left(x, weight, bias)


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
    if _rows(x) <= _FEW_IN_BF16:
        return linear(x, weight, bias)
    outputs, inputs = weight.shape
    wide, parts, rows = x.float(), [], block.numel() // inputs
    for first in range(0, outputs, rows):
        chosen = weight[first : first + rows]
        widened = block[: chosen.numel()].view(chosen.shape).copy_(chosen)
        own = None if bias is None else bias[first : first + rows].float()
        parts.append(linear(wide, widened, own).to(x.dtype))
    return torch.cat(parts, dim=-1)


class PackedWeights:
    """A copy of the weights of layers, one below the other, in the order in which oneDNN multiplies.

    The copy is made of the weights at the first product of more than a few rows, and kept until :meth:`forget`.

    Args:
        layers: With as many inputs each, and all with a bias or none.
        dtype: Of the copy, and of the arithmetic: float32, or bfloat16 where the processor multiplies that.

    Attributes:
        layers: Those layers.
        few: Rows up to which the weights are multiplied as they are.
    """

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.layers = list(layers)
        self.few = _FEW_FOR_ALL if dtype == torch.float32 else 0
        self._dtype = dtype
        self._copy: Tensor | None = None
        self._bias: Tensor | None = None

    def make(self) -> None:
        """Make the copy if there is none."""
        if self._copy is not None:
            return
        weight = torch.cat([layer.weight.detach().to(self._dtype) for layer in self.layers])
        biases = [layer.bias.detach().to(self._dtype) for layer in self.layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._copy = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)

    def forget(self) -> None:
        """Drop the copy: the weights have changed, or the memory is wanted."""
        self._copy = self._bias = None

    def product(self, x: Tensor) -> Tensor:
        """Return what ``torch.nn.functional.linear`` does, of all layers beside each other.

        Args:
            x: ``[..., inputs]`` of the type of the weights.

        Returns:
            ``[..., outputs]`` of that type.
        """
        flat = x.reshape(_rows(x), x.shape[-1]).to(self._dtype)
        if torch.compiler.is_compiling():
            product = compiling.packed_product(flat, self._copy, self._bias)
        else:
            self.make()
            product = torch.ops.mkldnn._linear_pointwise(flat, self._copy, self._bias, "none", [], "")
        return product.to(x.dtype).view(*x.shape[:-1], product.shape[-1])


class SharedProduct:
    """One product for layers that are given the same rows: the first computes it, each takes its part.

    Args:
        weights: Of the layers.
    """

    def __init__(self, weights: PackedWeights) -> None:
        self._weights = weights
        self._sizes = [layer.weight.shape[0] for layer in weights.layers]
        self._of: Tensor | None = None
        self._parts: Sequence[Tensor] = ()

    def part(self, place: int, x: Tensor) -> Tensor:
        """Return the product of one layer, as ``torch.nn.functional.linear`` does.

        Args:
            place: Of the layer among those of the weights.
            x: ``[..., inputs]`` of the type of the weights.

        Returns:
            ``[..., outputs]`` of that type; a view where there are several layers.
        """
        layer = self._weights.layers[place]
        if _rows(x) <= self._weights.few:
            return _few_rows(x, layer.weight, layer.bias)
        if len(self._sizes) == 1:
            return self._weights.product(x)
        if place == 0:
            self._of, self._parts = x, self._weights.product(x).split(self._sizes, dim=-1)
        elif self._of is not x:  # a model that calls them in an order of its own
            return linear(x, layer.weight, layer.bias)
        part = self._parts[place]
        if place == len(self._sizes) - 1:
            self._of, self._parts = None, ()
        return part
