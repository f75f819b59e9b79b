"""Hugging Face weights into the stages of a rank, and out of all ranks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PretrainedConfig

from roll.strategies.training.megatron.core import mpu
from roll.strategies.training.megatron.hf_names import NameRules, Source, whole_model_name
from roll.strategies.training.megatron.hf_weights import HfWeights
from roll.strategies.training.megatron.model import Stage

Merge = Callable[[Sequence[str], list[Tensor]], list[Tensor]]
"""From Hugging Face names and their whole weights to these weights with adapters added; called on all tensor ranks."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter of the whole model.

    Attributes:
        name: With layers and experts counted over all ranks.
        stage: Pipeline rank that holds it.
        expert_rank: Expert rank that holds it, 0 for what all of them hold.
        shapes: Of the Hugging Face tensors it becomes.
        dtype: Its number format.
    """

    name: str
    stage: int
    expert_rank: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype


class WeightMap:
    """Connects the parameters of a rank's stages with Hugging Face weights.

    Args:
        stages: Of this rank, without wrappers.
        config: Of the Hugging Face model.

    Attributes:
        merge: Changes weights on their way out; ``None`` leaves them as they are.
    """

    def __init__(self, stages: Sequence[Stage], config: PretrainedConfig) -> None:
        self._config = config
        self._rules = NameRules(config, mpu.get_tensor_model_parallel_world_size())
        self._value_head = stages[0].predicts == "values"
        self._tied = stages[0].share_embeddings_and_output_weights
        self._parameters: dict[str, nn.Parameter] = {}
        for stage in stages:
            self._parameters.update(
                {name: stage.get_parameter(local) for local, name in whole_model_names(stage).items()}
            )
        self.merge: Merge | None = None
        self._plan: list[Entry] | None = None

    @torch.no_grad()
    def load(self, weights: HfWeights) -> None:
        """Copy this rank's parts of the weights into its parameters.

        A critic's value head that is not there stays 0.

        Raises:
            KeyError: A weight is missing.
            ValueError: A weight has another shape than the configuration says.
        """
        for name, parameter in self._parameters.items():
            source = self.source(name)
            names = source.names
            if name == "output_layer.weight" and self._tied:
                names = ("model.embed_tokens.weight",)
            if self._value_head and name.startswith("output_layer.") and names[0] not in weights:
                continue
            part, parts = _part(source)
            value = source.layout.split([weights[one] for one in names], part, parts)
            if value.shape != parameter.shape:
                raise ValueError(
                    f"{' and '.join(names)} make {tuple(value.shape)} of {name}, which has {tuple(parameter.shape)}. "
                    "Do config.json and weights belong together?"
                )
            parameter.copy_(value)

    def stream(self, *, fused_experts: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight, of any shape, whole, on every rank, under its Hugging Face name.

        One parameter is gathered at a time; of experts, those of a layer. Every rank must iterate to the end.

        Args:
            fused_experts: Name and shape the experts of a layer as a model in memory does, one tensor for all;
                ``False`` as in checkpoint files, a tensor for each.
        """
        held: dict[str, list[Tensor]] = {}
        for entry in self._entries():
            source = self.source(entry.name)
            tensors = self._gather(entry, source)
            if source.expert is None or not fused_experts:
                yield from zip(source.names, tensors, strict=True)
                continue
            prefix, _, rest = source.names[0].partition(f".experts.{source.expert}.")
            fused = f"{prefix}.experts.{'down_proj' if rest.startswith('down') else 'gate_up_proj'}"
            held.setdefault(fused, []).append(torch.cat(tensors, 0))
            if len(held[fused]) == self._config.num_experts:
                yield fused, torch.stack(held.pop(fused))

    def _gather(self, entry: Entry, source: Source) -> list[Tensor]:
        """Return the Hugging Face tensors of a parameter on every rank."""
        stage_group = mpu.get_pipeline_model_parallel_group()
        expert_group = mpu.get_expert_model_parallel_group()
        own_stage = mpu.get_pipeline_model_parallel_rank() == entry.stage
        is_expert = source.expert is not None
        own_expert = not is_expert or mpu.get_expert_model_parallel_rank() == entry.expert_rank
        if own_stage and own_expert:
            group = mpu.get_expert_tensor_parallel_group() if is_expert else mpu.get_tensor_model_parallel_group()
            parts = all_parts(self._parameters[entry.name].detach(), group)
            tensors = [tensor.contiguous() for tensor in source.layout.join(parts)]
            if self.merge is not None:
                tensors = self.merge(source.names, tensors)
        else:
            device = next(iter(self._parameters.values())).device
            tensors = [torch.empty(shape, dtype=entry.dtype, device=device) for shape in entry.shapes]
        if is_expert and own_stage and expert_group.size() > 1:
            broadcast(tensors, entry.expert_rank, expert_group)
        if stage_group.size() > 1:
            broadcast(tensors, entry.stage, stage_group)
        return tensors

    def _entries(self) -> list[Entry]:
        """Return all parameters of the model in the order of their layers, equal on every rank."""
        if self._plan is not None:
            return self._plan
        own = []
        stage, expert_rank = mpu.get_pipeline_model_parallel_rank(), mpu.get_expert_model_parallel_rank()
        for name, parameter in self._parameters.items():
            if name == "output_layer.weight" and self._tied:
                continue
            source = self.source(name)
            parts = _part(source)[1]
            # Shapes only: nothing is computed.
            meta = source.layout.join([torch.empty(parameter.shape, device="meta") for _ in range(parts)])
            shapes = tuple(tuple(tensor.shape) for tensor in meta)
            owner = expert_rank if source.expert is not None else 0
            own.append(Entry(name, stage, owner, shapes, parameter.dtype))
        everyone: list[list[Entry] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        found = {entry.name: entry for entries in everyone for entry in entries or ()}
        self._plan = sorted(found.values(), key=lambda entry: self._order(entry.name))
        return self._plan

    def _order(self, name: str) -> tuple[int, int, int, str]:
        source = self.source(name)
        if name.startswith("embedding."):
            return (0, 0, 0, name)
        if name.startswith("decoder.layers."):
            expert = -1 if source.expert is None else source.expert
            # All first matrices of the experts of a layer, then all second ones.
            kind = f"{'fc2' if source.names[0].endswith('down_proj.weight') else 'fc1'}"
            layer = int(name.split(".")[2])
            return (1, layer, 0 if expert < 0 else (1 if kind == "fc1" else 2), f"{expert:06d}{name}")
        return (2, 0, 0, name)

    def value_head(self) -> Iterator[tuple[str, Tensor]]:
        """Yield weight ``[1, hidden]`` and bias ``[1]`` of a critic's head as :meth:`stream` does, and nothing else."""
        for entry in self._entries() if self._value_head else ():
            if entry.name.startswith("output_layer."):
                source = self.source(entry.name)
                yield from zip(source.names, self._gather(entry, source), strict=True)

    def source(self, name: str) -> Source:
        """Return where a parameter comes from, by its name in the whole model."""
        return self._rules.source(name, value_head=self._value_head)


def whole_model_names(stage: Stage) -> dict[str, str]:
    """Return the names in the whole model of a stage's parameters, by their names in the stage."""
    layers = stage.decoder.layers
    first_layer = layers[0].layer_number - 1 if len(layers) else 0
    first_expert = 0
    if stage.config.num_moe_experts:
        local = stage.config.num_moe_experts // mpu.get_expert_model_parallel_world_size()
        first_expert = local * mpu.get_expert_model_parallel_rank()
    return {name: whole_model_name(name, first_layer, first_expert) for name, _ in stage.named_parameters()}


def _part(source: Source) -> tuple[int, int]:
    """Return which part of a parameter this rank holds, and how many there are."""
    if source.expert is not None:
        return mpu.get_expert_tensor_parallel_rank(), mpu.get_expert_tensor_parallel_world_size()
    return mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()


def all_parts(own: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Return the parts that the ranks of a group hold, of any shape but all of one, in their order, on each of them."""
    if group.size() == 1:
        return [own]
    parts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(parts, own.contiguous(), group=group)
    return parts


def broadcast(tensors: Sequence[Tensor], source: int, group: dist.ProcessGroup) -> None:
    """Fill ``tensors``, of any shape, of all ranks of a group with those of its rank ``source``."""
    for tensor in tensors:
        dist.broadcast(tensor, src=dist.get_global_rank(group, source), group=group)
