"""From a training checkpoint of `fsdp_train` to a Hugging Face folder, in one process without the run."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel

from roll.models.image_processor import copy_image_processor
from roll.models.loading import DTYPES
from roll.strategies.training.adapters import base_name, is_adapter
from roll.strategies.training.pytorch.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FOLDER, MODEL_FOLDER

_ADAPTER_CONFIG = "adapter_config.json"


class ConversionError(ValueError):
    """A folder that is no checkpoint, or lacks what a Hugging Face folder needs."""


def convert_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    config: Path | None = None,
    tokenizer: Path | None = None,
    dtype: str | None = None,
) -> None:
    """Write the weights of a checkpoint, LoRA adapters merged, as a folder that ``from_pretrained`` loads.

    The whole model is held in CPU memory once; optimiser states are not read.

    Args:
        checkpoint: What ``save_checkpoint`` wrote, one file or shards of any number of ranks.
        out: The folder to make; it must not hold anything.
        config: Folder with the ``config.json`` of the model; ``None`` for the one in the checkpoint.
        tokenizer: Folder of a tokenizer to put beside the weights; ``None`` for that in ``checkpoint/hf``, if any.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the precision of the checkpoint.

    Raises:
        ConversionError: ``checkpoint`` is none, does not fit the configuration, or ``out`` holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConversionError(f"{out} holds something already. Name a new folder.")
    weights = _read_weights(checkpoint)
    described = config or checkpoint / MODEL_FOLDER
    if not (described / "config.json").is_file():
        raise ConversionError(
            f"{described} has no config.json, so the model is unknown. Name the folder of the model that was trained "
            "with --config."
        )
    model = _model(described, _merge(weights, checkpoint / MODEL_FOLDER / _ADAPTER_CONFIG))
    if dtype is not None:
        model.to(DTYPES[dtype])  # type: ignore[arg-type]
    words = tokenizer or (checkpoint / "hf" if (checkpoint / "hf" / "tokenizer_config.json").is_file() else None)
    out = out.absolute()
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        model.save_pretrained(partial)
        if words is not None:
            AutoTokenizer.from_pretrained(words).save_pretrained(partial)
        copy_image_processor(str(described), partial)
        partial.replace(out)  # whole or not at all: after Ctrl-C, or on a full disk
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Return all weights by their names in the model that was trained."""
    if (checkpoint / CHECKPOINT_FILE).is_file():
        state = torch.load(checkpoint / CHECKPOINT_FILE, map_location="cpu", weights_only=True, mmap=True)
        model: dict[str, Tensor] = state["model"]
        return model
    folder = checkpoint / CHECKPOINT_FOLDER
    if not (folder / ".metadata").is_file():
        raise ConversionError(
            f"{checkpoint} is no checkpoint of fsdp_train: it holds neither {CHECKPOINT_FILE} nor a whole "
            f"{CHECKPOINT_FOLDER} folder. Name a folder like output/<run>/checkpoints/step=000020."
        )
    prefix, target = "model.", dict[str, Tensor]()
    for name, entry in dcp.FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata):
            target[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        # It says that it reads in a single process even where it was told to.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(target, checkpoint_id=folder, no_dist=True)
    return {name.removeprefix(prefix): tensor for name, tensor in target.items()}


def _merge(weights: dict[str, Tensor], adapter_config: Path) -> dict[str, Tensor]:
    """Return the weights under Hugging Face names, with their adapters added."""
    adapters = {name: tensor for name, tensor in weights.items() if is_adapter(name)}
    if adapters and not adapter_config.is_file():
        raise ConversionError(
            f"The checkpoint has LoRA adapters, and {adapter_config}, which has their scale, is gone."
        )
    scale = 1.0
    if adapters:
        described: dict[str, Any] = json.loads(adapter_config.read_text(encoding="utf-8"))
        scale = described["lora_alpha"] / described["r"]
    result = {}
    for name, tensor in weights.items():
        if is_adapter(name):
            continue
        factor = f"{name.removesuffix('.base_layer.weight')}.lora_A.default.weight"
        if name.endswith(".base_layer.weight") and factor in adapters:
            delta = (adapters[factor.replace("lora_A", "lora_B")] @ adapters[factor]) * scale
            tensor = tensor + delta.to(tensor.dtype)
        result[base_name(name)] = tensor
    return result


def _model(described: Path, weights: dict[str, Tensor]) -> PreTrainedModel:
    """Return the model of a configuration with these weights."""
    config = AutoConfig.from_pretrained(described)
    name = (config.architectures or [""])[0]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise ConversionError(f"{described / 'config.json'} names the architecture {name!r}, unknown to transformers.")
    with torch.device("meta"):
        model: PreTrainedModel = kind(config)
    report = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    lost = [key for key, parameter in model.named_parameters() if parameter.is_meta]
    if lost or report.unexpected_keys:
        raise ConversionError(
            f"The weights do not fit {name} of {described}: {len(lost)} are missing ({', '.join(lost[:2])}), and "
            f"{len(report.unexpected_keys)} are unknown to it ({', '.join(report.unexpected_keys[:2])}). "
            "Name the folder of the model that was trained with --config."
        )
    if (described / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(described)
    return model
