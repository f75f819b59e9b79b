"""What ``torch.compile`` needs to make one graph of a forward pass over slots.

The compiler sees all of the model but two calls: attention over the slot cache, and products that are not PyTorch's
own. They depend on more than tensors, so in a compiled pass they are operators, which find their owner by its number.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

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


_library = torch.library.Library("roll_hf_infer", "DEF")
_library.define("attend(Tensor q, Tensor k, Tensor v, int cache, int layer, float? scaling, int? window) -> Tensor")
_library.impl("attend", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("roll_hf_infer::attend", _shape_of_attend, lib=_library)
_library.define("product(Tensor x, Tensor weight, Tensor? bias, int product) -> Tensor")
_library.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("roll_hf_infer::product", _shape_of_product, lib=_library)

attend = torch.ops.roll_hf_infer.attend.default
product = torch.ops.roll_hf_infer.product.default
