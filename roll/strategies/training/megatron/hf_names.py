"""Which Hugging Face weights make up a parameter of Megatron-Core, and how they are cut into parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from roll.strategies.training.megatron.architecture import head_size, padded_vocabulary


class Layout(Protocol):
    """How one or several Hugging Face tensors become the parts of a parameter, and back.

    They may have any shape that a layout can cut; all parts have one shape.
    """

    def split(self, whole: Sequence[Tensor], part: int, parts: int) -> Tensor:
        """Return part number ``part`` of ``parts``."""
        ...

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the Hugging Face tensors that all ``parts``, in their order, were made of."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """The same on every rank, of any shape."""

    def split(self, whole: Sequence[Tensor], part: int, parts: int) -> Tensor:
        """Return the tensor."""
        return whole[0]

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensor."""
        return [parts[0]]


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut along a dimension; of any shape."""

    dim: int

    def split(self, whole: Sequence[Tensor], part: int, parts: int) -> Tensor:
        """Return a slice."""
        return whole[0].chunk(parts, self.dim)[part]

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the slices side by side."""
        return [torch.cat(list(parts), self.dim)]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Rows of tokens ``[tokens, hidden]``, padded with zeros to a number that can be divided.

    Attributes:
        tokens: Rows without padding.
        padded: Rows with it.
    """

    tokens: int
    padded: int

    def split(self, whole: Sequence[Tensor], part: int, parts: int) -> Tensor:
        """Return a slice."""
        return F.pad(whole[0], (0, 0, 0, self.padded - self.tokens)).chunk(parts, 0)[part]

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return all rows without padding."""
        return [torch.cat(list(parts), 0)[: self.tokens]]


@dataclass(frozen=True, slots=True)
class Gated:
    """Gate and up projection, ``[rows, ...]`` each, every part having rows of both."""

    def split(self, whole: Sequence[Tensor], part: int, parts: int) -> Tensor:
        """Return some rows of the gate, and below them those of the up projection."""
        return torch.cat([matrix.chunk(parts, 0)[part] for matrix in whole], 0)

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return gate and up projection."""
        halves = [part.chunk(2, 0) for part in parts]
        return [torch.cat([half[side] for half in halves], 0) for side in (0, 1)]


@dataclass(frozen=True, slots=True)
class Attention:
    """Query, key and value, ``[rows, ...]``, group by group: the queries that share a key-value head, key, value.

    Attributes:
        groups: Key-value heads.
        queries: Rows of queries per group.
        size: Rows of a key or value head.
    """

    groups: int
    queries: int
    size: int

    def split(self, whole: Sequence[Tensor], part: int, parts: int) -> Tensor:
        """Return some groups."""
        tail = whole[0].shape[1:]
        grouped = [tensor.reshape(self.groups, -1, *tail) for tensor in whole]
        return torch.cat(grouped, 1).chunk(parts, 0)[part].reshape(-1, *tail)

    def join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return query, key and value."""
        fused = torch.cat(list(parts), 0)
        tail = fused.shape[1:]
        pieces = fused.view(self.groups, -1, *tail).split([self.queries, self.size, self.size], 1)
        return [piece.reshape(-1, *tail) for piece in pieces]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from.

    Attributes:
        names: Hugging Face names, as in checkpoint files: experts apart.
        layout: How they are put together and cut.
        expert: Number of the expert, of those that are spread over ranks; ``None`` for everything else.
    """

    names: tuple[str, ...]
    layout: Layout
    expert: int | None = None


class NameRules:
    """Finds the source of a parameter by its name, with the layers and experts of the whole model counted.

    Names of both kinds of layers are known: those in plain PyTorch, and those of Transformer Engine, which keep the
    norm in the linear layer behind it.

    Args:
        config: Of the Hugging Face model.
        tensor_parallel_size: Ranks that share the vocabulary.
    """

    def __init__(self, config: PretrainedConfig, tensor_parallel_size: int) -> None:
        size, groups = head_size(config), config.num_key_value_heads
        attention = Attention(groups, config.num_attention_heads // groups * size, size)
        vocabulary = Vocabulary(config.vocab_size, padded_vocabulary(config, tensor_parallel_size))
        self._top: dict[str, Source] = {
            "embedding.word_embeddings.weight": Source(("model.embed_tokens.weight",), vocabulary),
            "decoder.final_layernorm.weight": Source(("model.norm.weight",), Whole()),
            "output_layer.weight": Source(("lm_head.weight",), vocabulary),
        }
        self._head: dict[str, Source] = {
            "output_layer.weight": Source(("score.weight",), Whole()),
            "output_layer.bias": Source(("score.bias",), Whole()),
        }
        norm, after = "input_layernorm.weight", "post_attention_layernorm.weight"
        self._layer: dict[str, tuple[tuple[str, ...], Layout]] = {
            "input_layernorm.weight": ((norm,), Whole()),
            "self_attention.linear_qkv.layer_norm_weight": ((norm,), Whole()),
            **{
                f"self_attention.linear_qkv.{kind}": (tuple(f"self_attn.{x}_proj.{kind}" for x in "qkv"), attention)
                for kind in ("weight", "bias")
            },
            "self_attention.q_layernorm.weight": (("self_attn.q_norm.weight",), Whole()),
            "self_attention.k_layernorm.weight": (("self_attn.k_norm.weight",), Whole()),
            "self_attention.linear_proj.weight": (("self_attn.o_proj.weight",), Cut(1)),
            "pre_mlp_layernorm.weight": ((after,), Whole()),
            "mlp.linear_fc1.layer_norm_weight": ((after,), Whole()),
            "mlp.linear_fc1.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), Gated()),
            "mlp.linear_fc2.weight": (("mlp.down_proj.weight",), Cut(1)),
            "mlp.router.weight": (("mlp.gate.weight",), Whole()),
        }

    def source(self, name: str, *, value_head: bool = False) -> Source:
        """Return the source of a parameter.

        Args:
            name: Name of the parameter, layers and experts counted over all ranks.
            value_head: Whether the model is a critic.

        Raises:
            KeyError: No rule fits the name.
        """
        if value_head and name in self._head:
            return self._head[name]
        if name in self._top:
            return self._top[name]
        layer = _LAYER.fullmatch(name)
        if layer is None:
            raise KeyError(f"no Hugging Face weight is known for {name!r}")
        prefix, rest = f"model.layers.{layer[1]}.", layer[2]
        expert = _EXPERT.fullmatch(rest)
        if expert is not None:
            number = int(expert["apart"] or expert["grouped"])
            first = (expert["apart_fc"] or expert["grouped_fc"]) == "1"
            parts = ("gate_proj", "up_proj") if first else ("down_proj",)
            weights = tuple(f"{prefix}mlp.experts.{number}.{part}.weight" for part in parts)
            return Source(weights, Gated() if first else Cut(1), number)
        if rest not in self._layer:
            raise KeyError(f"no Hugging Face weight is known for {name!r}")
        names, layout = self._layer[rest]
        return Source(tuple(prefix + part for part in names), layout)


_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(
    r"mlp\.experts\.local_experts\.(?P<apart>\d+)\.linear_fc(?P<apart_fc>[12])\.weight"
    r"|mlp\.experts\.linear_fc(?P<grouped_fc>[12])\.weight(?P<grouped>\d+)"
)


def whole_model_name(name: str, first_layer: int, first_expert: int) -> str:
    """Return the name of a rank's parameter with layers and experts counted over all ranks.

    Args:
        name: Name within the rank's stage.
        first_layer: Number of the stage's first layer.
        first_expert: Number of the rank's first expert.
    """
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return name
    rest = layer[2]
    expert = _EXPERT.fullmatch(rest)
    if expert is not None:
        group = "apart" if expert["apart"] is not None else "grouped"
        start, end = expert.span(group)
        rest = f"{rest[:start]}{int(expert[group]) + first_expert}{rest[end:]}"
    return f"decoder.layers.{int(layer[1]) + first_layer}.{rest}"
