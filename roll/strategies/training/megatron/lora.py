"""All LoRA adapters of a model that Megatron-Core spreads over ranks: put in, switched off, merged and written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from roll.strategies.base import Classifier, Prediction
from roll.strategies.training.adapters import ADAPTER, adapted_layers, write_adapters
from roll.strategies.training.megatron.core import mpu
from roll.strategies.training.megatron.hf_names import Attention, Cut, Gated, Source
from roll.strategies.training.megatron.lora_layers import Factors, LayerAdapters, adapt
from roll.strategies.training.megatron.model import Stage
from roll.strategies.training.megatron.parallel import gather
from roll.strategies.training.megatron.weights import WeightMap, all_parts, broadcast, whole_model_names
from roll.strategies.training.values import classifier_class, classifier_config

Adapt = Callable[[PreTrainedModel], object]
"""Gives a Hugging Face model its adapters, in place (:func:`roll.models.lora.add_adapters`)."""


def hollow_model(config: PretrainedConfig, predicts: Prediction, classifier: Classifier) -> PreTrainedModel:
    """Return the Hugging Face model of a configuration with weights that take no memory, all 0.

    Unlike on the meta device, adapters that are added to it are drawn, and have the numbers that they would have
    beside real weights.
    """
    with torch.device("meta"):
        model: PreTrainedModel
        if predicts == "values":
            config = classifier_config(config, classifier)
            model = classifier_class(config, classifier)._from_config(config, dtype=torch.float32)
        else:
            model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zeros = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            module.register_parameter(name, nn.Parameter(zeros, requires_grad=False))
    return model


def adapted_model(
    model: PreTrainedModel | str | Path,
    config: PretrainedConfig,
    predicts: Prediction,
    adapt: Adapt | None,
    classifier: Classifier = "token",
) -> PreTrainedModel | None:
    """Return a Hugging Face model with the adapters that are wanted, or ``None`` where none are.

    Args:
        model: A folder, or a loaded model that may have its adapters.
        config: Of the model.
        predicts: What it is used for.
        adapt: Adds adapters.
        classifier: What a model that predicts values is.

    Raises:
        ValueError: Adapters are to be added to a model that has some.
    """
    has_some = isinstance(model, PreTrainedModel) and bool(adapted_layers(model))
    if adapt is None:
        return model if isinstance(model, PreTrainedModel) and has_some else None
    if has_some:
        raise ValueError(f"{type(model).__name__} has LoRA adapters already. Leave adapt out to train these.")
    hollow = hollow_model(config, predicts, classifier)
    adapt(hollow)
    return hollow if adapted_layers(hollow) else None


class Adapters:
    """The adapters of the layers of a rank's stages.

    It freezes the stages, of a critic all but the value head. Every rank must make it.

    Args:
        model: A Hugging Face model with adapters, which are copied from; its weights are not read.
        stages: Of this rank, without wrappers.
        weights: Knows which Hugging Face layers each layer stands for; from now on it streams merged weights.

    Raises:
        ValueError: A layer with an adapter is not known, or cannot have one of this kind.
    """

    def __init__(self, model: PreTrainedModel, stages: Sequence[Stage], weights: WeightMap) -> None:
        factors = {name: _factors(name, layer) for name, layer in adapted_layers(model).items()}
        self._config: Any = model.peft_config[ADAPTER]
        self._weights, self._device = weights, next(stages[0].parameters()).device
        # By Hugging Face layer, as long as this rank has it.
        self._layers: dict[str, LayerAdapters] = {}
        for stage in stages:
            _freeze(stage)
            for local, name in whole_model_names(stage).items():
                source = weights.source(name)
                if name.endswith(".weight") and source.expert is None:
                    self._attach(stage, local.removesuffix(".weight"), source, factors)
            if stage.pre_process:
                stage.embedding.register_forward_hook(_require_gradient)
        self._shapes = {name: (tuple(one.a.shape), tuple(one.b.shape)) for name, one in factors.items()}
        self._stage_of = self._find_stages()
        weights.merge = self.merge

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Compute with the frozen weights alone."""
        layers = set(self._layers.values())
        before = {layer: layer.enabled for layer in layers}
        for layer in layers:
            layer.enabled = False
        try:
            yield
        finally:
            for layer, enabled in before.items():
                layer.enabled = enabled

    @torch.no_grad()
    def merge(self, names: Sequence[str], weights: list[Tensor]) -> list[Tensor]:
        """Return whole weights of this rank's layers with their adapters added, ``W + alpha / rank * B A``.

        Every rank that shares them must call it.

        Args:
            names: Hugging Face names.
            weights: ``[outputs, inputs]`` each, where there is an adapter; others are handed through.
        """
        return [self._merged(name, weight) for name, weight in zip(names, weights, strict=True)]

    @torch.no_grad()
    def save(self, directory: Path, *, write: bool) -> None:
        """Write the adapters, and a value head, as ``peft.PeftModel.from_pretrained`` reads them.

        Every rank must call it.

        Args:
            directory: Made if it is not there.
            write: Whether this rank writes.
        """
        tensors: dict[str, Tensor] = {}
        for name in self._shapes:
            for kind, whole in zip("AB", self._everywhere(name), strict=True):
                if write:
                    tensors[f"{name}.lora_{kind}.{ADAPTER}.weight"] = whole.cpu()
        for name, whole in self._weights.value_head():
            if write:
                tensors[name] = whole.cpu()
        if write:
            write_adapters(directory, tensors, self._config)
        dist.barrier()

    def _attach(self, stage: Stage, local: str, source: Source, factors: Mapping[str, Factors]) -> None:
        """Give a layer of a stage the adapters of its Hugging Face layers, if any of them has one."""
        names = [name.removesuffix(".weight") for name in source.names]
        present = [name for name in names if name in factors]
        if not present:
            return
        linear = stage.get_submodule(local)
        parts = mpu.get_tensor_model_parallel_world_size()
        cut = isinstance(source.layout, Cut)
        if not cut and not isinstance(source.layout, Attention | Gated):
            raise ValueError(f"lora_target: {present[0]} cannot have an adapter in megatron_train. Use fsdp_train.")
        weight: Any = linear.weight
        whole = source.layout.join([torch.empty(weight.shape, device="meta") for _ in range(parts)])
        adapters = LayerAdapters(
            {_last(name): factors[name] for name in present},
            {_last(name): one.shape[0] // (1 if cut else parts) for name, one in zip(names, whole, strict=True)},
            groups=source.layout.groups // parts if isinstance(source.layout, Attention) else 1,
            cut="inputs" if cut else "outputs",
            config=stage.config,
            device=weight.device,
        )
        parent, _, last = local.rpartition(".")
        # Beside the layer, whose names stay what they are.
        stage.get_submodule(parent).add_module(f"{last}_adapters", adapters)
        adapt(linear, adapters)
        self._layers.update(dict.fromkeys(present, adapters))

    def _merged(self, name: str, weight: Tensor) -> Tensor:
        layer = name.removesuffix(".weight")
        if not name.endswith(".weight") or layer not in self._layers:
            return weight
        a, b = self._whole(layer)
        delta = (b @ a) * self._layers[layer].scaling(_last(layer))
        return weight + delta.to(weight.dtype)

    def _whole(self, name: str) -> list[Tensor]:
        """Return ``A`` and ``B`` of a layer of this rank; all ranks that share it must call this."""
        group = mpu.get_tensor_model_parallel_group()
        return [
            own if dim is None else torch.cat(all_parts(own, group), dim)
            for own, dim in self._layers[name].parts(_last(name))
        ]

    def _everywhere(self, name: str) -> list[Tensor]:
        """Return ``A`` and ``B`` of any layer, on every rank."""
        group = mpu.get_pipeline_model_parallel_group()
        if name in self._layers:
            whole = [tensor.contiguous() for tensor in self._whole(name)]
        else:
            whole = [torch.empty(shape, device=self._device) for shape in self._shapes[name]]
        if group.size() > 1:
            broadcast(whole, self._stage_of[name], group)
        return whole

    def _find_stages(self) -> dict[str, int]:
        """Return which pipeline rank has each layer, by what all ranks say of themselves."""
        own = mpu.get_pipeline_model_parallel_rank()
        found = {name: stage for stage, names in gather((own, list(self._layers))) for name in names}
        unknown = [name for name in self._shapes if name not in found]
        if unknown:
            raise ValueError(
                f"lora_target: megatron_train knows no layer {unknown[0]}. Leave it out of lora_target, or use "
                "fsdp_train."
            )
        return found


def _factors(name: str, layer: Any) -> Factors:
    """Return the adapter of a Hugging Face layer.

    Raises:
        ValueError: It is more than two matrices and a factor.
    """
    unusual = {
        "dropout": not isinstance(layer.lora_dropout[ADAPTER], nn.Identity),
        "a bias": layer.lora_B[ADAPTER].bias is not None,
        "a variant like DoRA": ADAPTER in layer.lora_variant,
    }
    for what, there in unusual.items():
        if there:
            raise ValueError(f"{name} has a LoRA adapter with {what}, which megatron_train does not know.")
    return Factors(layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, layer.scaling[ADAPTER])


def _freeze(stage: Stage) -> None:
    """Train nothing of a stage but a value head."""
    stage.requires_grad_(False)
    if stage.post_process and stage.predicts == "values":
        stage.output_layer.requires_grad_(True)


def _require_gradient(embedding: nn.Module, inputs: Any, states: Tensor) -> Tensor:
    """Let gradients be recorded from the first layer on, whose frozen input would not ask for any.

    Layers that are recomputed look at their input only, and a stage must have something to go back through.
    """
    return states.requires_grad_() if torch.is_grad_enabled() else states


def _last(name: str) -> str:
    return name.rpartition(".")[2]
