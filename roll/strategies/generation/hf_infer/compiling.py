"""What ``torch.compile`` needs to make one graph of a forward pass over slots.

The compiler sees all of the model but two calls: attention over the slot cache, and products that are not PyTorch's
own. They depend on more than tensors, so in a compiled pass they are operators, which find their owner by its number.
Products of packed weights depend on nothing else, and are called without a way through Python.
"""

from __future__ import annotations

import itertools
import types
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from roll.strategies.generation.hf_infer.options import UnusableOptionError

_owners: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = itertools.count()


class CannotCompileError(UnusableOptionError):
    """A model was to be compiled that cannot be, or not here."""

    option = "torch_compile"


def number(owner: object) -> int:
    """Return a number by which the operators find ``owner`` as long as it is alive."""
    given = next(_numbers)
    _owners[given] = owner
    return given


def _attend(
    query: Tensor, key: Tensor, value: Tensor, cache: int, layer: int, scaling: float | None, window: int | None
) -> Tensor:
    result: Tensor = _owners[cache].attend(layer, query, key, value, scaling, window)
    return result


def _shape_of_attend(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, product: int) -> Tensor:
    result: Tensor = _owners[product](x, weight, bias)
    return result


def _shape_of_product(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _packed_product(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, *others)
    return result


def packed_product(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiply packed weights, in a graph; see :class:`PackedWeights`.

    Args:
        x: ``[rows, inputs]``.
        weight: ``[outputs, inputs]`` in oneDNN's order.
        bias: ``[outputs]``.

    Returns:
        ``[rows, outputs]``.
    """
    assert weight is not None
    result: Tensor = torch.ops.roll_hf_infer.packed_product(x, weight, bias, "none", [], "")
    return result


def call_packed_products_directly() -> None:
    """Have Inductor's graphs call oneDNN's product itself, and not by way of Python.

    It does so by itself only for weights that never change. A PyTorch that has no such handlers goes by way of Python.
    """
    with suppress(ImportError):
        from torch._inductor.lowering import fallback_handler, lowerings, register_lowering

        operator = torch.ops.roll_hf_infer.packed_product.default
        if operator not in lowerings:
            direct = fallback_handler(torch.ops.mkldnn._linear_pointwise.default, add_to_fallback_set=False)
            register_lowering(operator, type_promotion_kind=None)(direct)


def compile_in_place(module: nn.Module) -> None:
    """Have the calls of a module make one graph of it at the first of them.

    A graph is looked for among those of the code that is called. It has code of its own here, which belongs to this
    module alone, so that nothing has to be compared but what it is called with: that is a tenth of the time of a step
    that samples for one request. The module may change nothing but the numbers in its tensors.
    """
    call = module._call_impl.__func__  # type: ignore[attr-defined]
    code = call.__code__.replace()
    own = types.FunctionType(code, call.__globals__, call.__name__, call.__defaults__, call.__closure__)
    module._call_impl = types.MethodType(own, module)  # type: ignore[method-assign]
    module.compile(dynamic=True, options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe})


_library = torch.library.Library("roll_hf_infer", "DEF")
_library.define("attend(Tensor q, Tensor k, Tensor v, int cache, int layer, float? scaling, int? window) -> Tensor")
_library.impl("attend", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("roll_hf_infer::attend", _shape_of_attend, lib=_library)
_library.define("product(Tensor x, Tensor weight, Tensor? bias, int product) -> Tensor")
_library.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("roll_hf_infer::product", _shape_of_product, lib=_library)
_library.define("packed_product(Tensor x, Tensor weight, Tensor? bias, str attr, Scalar?[] s, str? how) -> Tensor")
_library.impl("packed_product", _packed_product, "CompositeExplicitAutograd")
torch.library.register_fake("roll_hf_infer::packed_product", _shape_of_product, lib=_library)

attend = torch.ops.roll_hf_infer.attend.default
product = torch.ops.roll_hf_infer.product.default
