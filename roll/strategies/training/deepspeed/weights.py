"""Whole weights of a model whose weights may be shared out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.strategies.training.adapters import adapted_layers, merged_named_parameters
from roll.strategies.training.deepspeed.engine import import_deepspeed, is_shared_out, shape_of
from roll.strategies.training.ranks import Ranks

BUCKET = 2**27
"""Most numbers that are gathered at once, unless a single parameter has more: 512 MiB in fp32."""


def stream_weights(model: PreTrainedModel, bucket: int = BUCKET) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight, of any shape, under its Hugging Face name, detached and whole, with LoRA adapters added.

    Args:
        model: The model. Where weights are shared out, every rank must iterate to the end.
        bucket: Most numbers gathered at once, unless a single parameter has more. With adapters one parameter is
            gathered at a time.
    """
    if adapted_layers(model):
        yield from merged_named_parameters(model, whole)
        return
    waiting: list[tuple[str, nn.Parameter]] = []
    numel = 0
    for name, parameter in model.named_parameters():
        size = shape_of(parameter).numel()
        if waiting and numel + size > bucket:
            yield from _gathered(waiting)
            waiting, numel = [], 0
        waiting.append((name, parameter))
        numel += size
    yield from _gathered(waiting)


def whole(parameter: Tensor) -> Tensor:
    """Return all of a parameter of any shape, detached. Where it is shared out, every rank must call it."""
    assert isinstance(parameter, nn.Parameter)
    return next(_gathered([("", parameter)]))[1]


def exact(parameter: Tensor) -> Tensor:
    """Return all of a parameter of any shape in fp32, where the optimiser has it so. Every rank must call it."""
    assert isinstance(parameter, nn.Parameter)
    if parameter.dtype == torch.float32 or not parameter.requires_grad:
        return whole(parameter)
    found = import_deepspeed().utils.safe_get_full_fp32_param(parameter)
    return whole(parameter) if found is None else found.detach()


def save_whole(model: PreTrainedModel, directory: Path, ranks: Ranks) -> None:
    """Write weights and config in Hugging Face format, in fp32 where the optimiser has fp32 weights, adapters added.

    Every rank must call it; the first one writes.
    """
    state: dict[str, Tensor] = {}
    for name, weights in merged_named_parameters(model, exact):
        if ranks.rank == 0:
            state[name] = weights.cpu().clone()
    if ranks.rank == 0:
        persistent = model.state_dict().keys()
        state |= {name: buffer.cpu() for name, buffer in model.named_buffers() if name in persistent}
        model.save_pretrained(directory, state_dict=state)
        _name_dtype(directory / "config.json", next(iter(state.values())).dtype)
    ranks.gather(None)


def _name_dtype(config: Path, dtype: torch.dtype) -> None:
    """Write into a saved configuration what the weights are stored in; transformers writes what the model has."""
    content = json.loads(config.read_text("utf-8"))
    content["dtype"] = str(dtype).removeprefix("torch.")
    config.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def _gathered(named: list[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters whole; they are shared out again before the first one is handed over."""
    shared = [parameter for _, parameter in named if is_shared_out(parameter)]
    if not shared:
        yield from ((name, parameter.detach()) for name, parameter in named)
        return
    with import_deepspeed().zero.GatheredParameters(shared):
        # DeepSpeed lets go of the memory at the end of the block; these references keep it.
        ready = [(name, parameter.data) for name, parameter in named]
    while ready:
        yield ready.pop(0)
