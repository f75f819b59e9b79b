"""LoRA adapters for a loaded model (arXiv:2106.09685), made by peft."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roll.common.spelling import nearest
from roll.strategies.training.adapters import ADAPTER, adapted_layers
from roll.strategies.training.values import HEADS

ALL_LINEAR = "all-linear"

_TASKS = {"TokenClassification": "TOKEN_CLS", "SequenceClassification": "SEQ_CLS"}
"""What peft calls what a model is for, by the end of the name of its class."""

_NAMES_OF_EXPERTS = {"gate_proj", "up_proj", "down_proj"}
"""Where a model keeps its experts in one tensor, peft takes these names for that tensor, also when it reads files."""


def add_adapters(
    model: PreTrainedModel,
    rank: int,
    alpha: float | None = None,
    target: str | Sequence[str] | None = None,
    *,
    seed: int = 0,
) -> PreTrainedModel:
    """Freeze a model and give it trainable LoRA adapters, in place.

    Of a critic the value head is trained too. Before the first step nothing changes: ``B`` is 0. Experts that a model
    keeps in one tensor have no linear layers, and get no adapters; nor do dense layers of that model that peft could
    not tell from experts (``gate_proj``, ``up_proj``, ``down_proj``). A vision part gets none, and stays as it is.

    Args:
        model: A Hugging Face model, before it is handed to a train strategy.
        rank: Columns of ``B`` and rows of ``A``.
        alpha: The adapter counts ``alpha / rank``; ``None`` is ``rank``.
        target: Names of linear layers, the last part of them (``q_proj``); ``None`` or ``all-linear`` for all but the
            head.
        seed: Draws ``A``. The same on every rank; the global generator is left alone.

    Returns:
        ``model``.

    Raises:
        ModuleNotFoundError: peft is not installed.
        ValueError: A target is no linear layer of the model, or the model has adapters already.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("lora_rank needs peft: pip install 'roll-rl[lora]'") from error
    if adapted_layers(model):
        raise ValueError(f"{type(model).__name__} has LoRA adapters already.")
    seeing = _layers_that_see(model)
    names = _targets(model, [target] if isinstance(target, str) else target, seeing)
    heads = [name for name in HEADS if isinstance(getattr(model, name, None), nn.Linear)]
    config: Any = LoraConfig(
        r=rank,
        lora_alpha=rank if alpha is None else alpha,  # type: ignore[arg-type]
        target_modules=names,
        exclude_modules=seeing or None,
        lora_dropout=0.0,
        bias="none",
        base_model_name_or_path=model.name_or_path,
        task_type=_TASKS.get(type(model).__name__.rpartition("For")[2], "CAUSAL_LM"),
        inference_mode=False,
    )
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), warnings.catch_warnings():
        # It warns of tied embeddings even where they are no target.
        warnings.filterwarnings("ignore", category=UserWarning, module="peft")
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    # As precise as the weights, at least fp32; peft decides otherwise where there is no memory behind the weights yet.
    precision = torch.promote_types(model.dtype, torch.float32)
    for layer in adapted_layers(model).values():
        for factors in (layer.lora_A, layer.lora_B):
            factors.to(precision)
    for name in heads:
        getattr(model, name).requires_grad_(True)
    # Only now: injected with it, peft would keep a second copy of the head.
    config.modules_to_save = heads or None
    return model


def _layers_that_see(model: PreTrainedModel) -> list[str]:
    """Return the names of the linear layers of a model's vision part, if it has one."""
    if "vision_config" not in model.config.sub_configs:
        return []
    head = model.get_output_embeddings()
    decoder: nn.Module = model.get_decoder()
    others = {id(module) for module in decoder.modules()} | {id(head)}
    return [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) not in others
    ]


def _targets(model: PreTrainedModel, wanted: Sequence[str] | None, left_out: Sequence[str]) -> list[str]:
    """Return the last parts of the names of the layers that get an adapter."""
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and name not in (*HEADS, *left_out)
    }
    if any(name.endswith(".experts.gate_up_proj") for name, _ in model.named_parameters()):
        linear -= _NAMES_OF_EXPERTS
    if wanted is None or ALL_LINEAR in wanted:
        return sorted(linear)
    for name in wanted:
        if name not in linear:
            hint = nearest(name, sorted(linear))
            raise ValueError(
                f"lora_target {name!r} is no linear layer of {type(model).__name__}"
                f"{f'; did you mean {hint}?' if hint else '.'} "
                f"Use {ALL_LINEAR}, or some of {', '.join(sorted(linear))}."
            )
    return sorted(set(wanted))
