"""Fingerprints of the weights inside vLLM's processes, under Hugging Face names.

vLLM fuses projections, divides matrices between processes and, on CPUs, packs them so that they cannot be read any
more. What is left of each is its product with a vector, which is all that a fingerprint needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from roll.strategies.fingerprints import Fingerprints, fingerprint, signs

Whole = Literal["copy", "rows", "sum"]
"""How the parts of all processes make a whole: all are equal, or rows of it, or their sum is it."""

Part = tuple[str, Whole, Tensor]
"""Hugging Face name, how it is joined, and values, ``[values]`` float32; none where another process has the same."""


@torch.inference_mode()
def parts_of(model: nn.Module) -> Iterator[Part]:
    """Yield this process's part of every fingerprint."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            yield from _linear(name, module, fused)
        elif isinstance(module, VocabParallelEmbedding):
            rows = module.shard_indices.num_org_elements
            # A head is packed too, and its weight only kept beside it.
            weight = module.weight
            product = _product(module, weight.shape[-1]) if isinstance(module, ParallelLMHead) else fingerprint(weight)
            yield f"{name}.weight", "rows", product[:rows]
        else:
            for own, parameter in module.named_parameters(recurse=False):
                yield f"{name}.{own}" if name else own, "copy", fingerprint(parameter)


def join(processes: Sequence[Iterable[Part]]) -> Fingerprints:
    """Return whole fingerprints from the parts of all processes, in their order."""
    joined: Fingerprints = {}
    for parts in processes:
        for name, whole, values in parts:
            if name not in joined:
                joined[name] = values
            elif whole == "rows":
                joined[name] = torch.cat([joined[name], values])
            elif whole == "sum":
                joined[name] = joined[name] + values
    return joined


def _linear(name: str, module: Any, fused: dict[str, list[str]]) -> Iterator[Part]:
    """Yield the matrix of a linear layer and its bias, each projection of a fused one for itself."""
    from vllm.model_executor.layers.linear import QKVParallelLinear, ReplicatedLinear, RowParallelLinear

    parent, _, own = name.rpartition(".")
    sizes: list[int] = module.output_partition_sizes
    names = fused.get(own, [own])
    if len(names) != len(sizes):
        names, sizes = [own], [sum(sizes)]
    divided = isinstance(module, RowParallelLinear)
    first = module.tp_rank * module.input_size_per_partition if divided else 0
    product = _product(module, module.input_size, first).split(sizes)
    bias = None if module.bias is None else module.bias.detach().float().cpu().split(sizes)
    replicas = module.num_kv_head_replicas if isinstance(module, QKVParallelLinear) else 1
    whole: Whole = "sum" if divided else "copy" if isinstance(module, ReplicatedLinear) else "rows"
    for index, each in enumerate(names):
        prefix = f"{parent}.{each}" if parent else each
        # Where there are more processes than key heads, several have the same.
        shown = index == 0 or module.tp_rank % replicas == 0
        yield f"{prefix}.weight", whole, product[index] if shown else product[index][:0]
        if bias is not None:
            yield f"{prefix}.bias", "copy" if divided else whole, bias[index] if shown else bias[index][:0]


def _product(module: Any, width: int, first: int = 0) -> Tensor:
    """Return the matrix of a layer times the vector of signs, of which it may have columns from ``first`` on only."""
    weight = module.weight
    columns = getattr(module, "input_size_per_partition", width)
    vector = signs(width)[first : first + columns]
    if weight.ndim == 2 and weight.shape[-1] == columns and weight.dtype.is_floating_point and not _is_packed(module):
        return (weight.detach().float() @ vector.to(weight.device)).cpu()
    dtype = cast(torch.dtype, getattr(module, "params_dtype", None) or torch.get_default_dtype())
    found: Tensor = module.quant_method.apply(module, vector.to(weight.device, dtype)[None], None)
    return found[0].float().cpu()


def _is_packed(module: Any) -> bool:
    """Return whether a layer computes with something else than its weight."""
    return hasattr(module, "cpu_linear")
