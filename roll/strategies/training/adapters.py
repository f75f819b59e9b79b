"""LoRA adapters inside a model (arXiv:2106.09685): merged weights, switching them off, and their files.

Models get adapters from :func:`roll.models.lora.add_adapters`. This file needs no peft: an adapted layer is a module
that holds ``base_layer`` with the frozen weights beside ``lora_A`` and ``lora_B``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

ADAPTER = "default"
"""Name of the adapter within the model; it is not in any file."""

WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."

Gather = Callable[[Tensor], Tensor]
"""From a parameter, which may be sharded, to all of it, detached."""


def adapted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers with an adapter, by their names in the model."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "base_layer") and ADAPTER in getattr(module, "lora_A", {})
    }


def base_name(name: str) -> str:
    """Return the Hugging Face name of a parameter of a model that may have adapters."""
    return name.replace(".base_layer.", ".")


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter, by its name in the model."""
    return ".lora_A." in name or ".lora_B." in name


@torch.no_grad()
def merged_named_parameters(model: nn.Module, gather: Gather = Tensor.detach) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight with its adapter added, ``W + alpha / rank * B A``, under Hugging Face names.

    The model stays as it is. One merged matrix exists at a time, if the reader keeps none; parameters without an
    adapter, of any shape, are not copied.

    Args:
        model: A model with or without adapters.
        gather: Makes all of a parameter; of a sharded model every rank must then iterate to the end.
    """
    layers = adapted_layers(model)
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            continue
        weight = gather(parameter)
        layer = layers.get(name.removesuffix(".base_layer.weight")) if name.endswith(".base_layer.weight") else None
        yield base_name(name), weight if layer is None else merged(layer, weight, gather)
        del weight


def merged(layer: nn.Module, weight: Tensor, gather: Gather = Tensor.detach) -> Tensor:
    """Return a new ``weight`` ``[outputs, inputs]`` of an adapted layer, with its adapter added."""
    a, b = (gather(getattr(layer, part)[ADAPTER].weight) for part in ("lora_A", "lora_B"))
    delta: Tensor = (b @ a) * layer.scaling[ADAPTER]  # type: ignore[index]
    return weight + delta.to(weight.dtype)


@contextmanager
def adapters_disabled(model: nn.Module) -> Iterator[None]:
    """Compute with the frozen base model alone; for a policy with adapters this is its reference policy."""
    layers = adapted_layers(model).values()
    before = [layer._disable_adapters for layer in layers]
    # peft's own switch would also take the adapters out of training, which sharding could not undo.
    for layer in layers:
        layer._disable_adapters = True  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer._disable_adapters = value


def save_adapters(
    model: PreTrainedModel, directory: Path, gather: Gather = Tensor.detach, *, write: bool = True
) -> None:
    """Write the adapters, and what else is trained (a value head), as ``peft.PeftModel.from_pretrained`` reads them.

    Args:
        model: A model with adapters.
        directory: Gets ``adapter_config.json`` and ``adapter_model.safetensors``.
        gather: Makes all of a parameter; of a sharded model every rank must call this function.
        write: Whether this process writes.

    Raises:
        ValueError: The model has no adapters.
    """
    if not adapted_layers(model):
        raise ValueError(f"{type(model).__name__} has no LoRA adapters. Set model_args.lora_rank, or use save_hf.")
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if is_adapter(name) or parameter.requires_grad:
            whole = gather(parameter)
            if write:
                tensors[name] = whole.cpu()
    if write:
        write_adapters(directory, tensors, model.peft_config[ADAPTER])


def write_adapters(directory: Path, tensors: Mapping[str, Tensor], config: Any) -> None:
    """Write the files of :func:`save_adapters`.

    Args:
        directory: Made if it is not there.
        tensors: Whole, of any shape and on any device, by their names in a model with adapters.
        config: What peft calls ``LoraConfig``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    named = {_PREFIX + name.replace(f".{ADAPTER}.", "."): value.cpu().contiguous() for name, value in tensors.items()}
    save_file(named, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    config.save_pretrained(directory)
