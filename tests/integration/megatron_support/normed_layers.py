"""Layers with norms inside the linear layers behind them, as Transformer Engine has them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from torch import Tensor, nn

from roll.rehearsal.megatron_on_cpu import cpu_layers


class NormedLinear(ColumnParallelLinear):
    """Stands for Transformer Engine's layer with a norm inside: its names, and what it returns when asked."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = nn.Parameter(torch.ones(input_size))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel
        self.return_layernorm_output = False

    def forward(self, states: Tensor) -> Any:
        normed = F.rms_norm(states, states.shape[-1:], self.layer_norm_weight, self.config.layernorm_epsilon)
        output, bias = super().forward(normed)
        return ((output, normed) if self.return_layernorm_output else output), bias


class HiddenNormLinear(NormedLinear):
    """Keeps the output of its norm to itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.return_layernorm_output

    def forward(self, states: Tensor) -> Any:
        raise NotImplementedError


def normed_layers(config: TransformerConfig, virtual_stage: int | None, linear: type = NormedLinear) -> Any:
    """Return the layers of :func:`cpu_layers` with norms inside the linear layers behind them."""
    block = cpu_layers(config, virtual_stage)
    for spec in block.layer_specs:
        layer = spec.submodules
        layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
        layer.self_attention.submodules.linear_qkv = layer.mlp.submodules.linear_fc1 = linear
    return block


def hidden_norm_layers(config: TransformerConfig, virtual_stage: int | None) -> Any:
    """Return layers whose norm nobody can see."""
    return normed_layers(config, virtual_stage, HiddenNormLinear)
