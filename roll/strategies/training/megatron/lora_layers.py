"""LoRA adapters (arXiv:2106.09685) beside a linear layer that Megatron-Core spreads over tensor-parallel ranks.

Megatron-Core fuses query, key and value into one layer, and gate and up projection into another. Adapters are those of
the Hugging Face layers, so a fused layer has one for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roll.strategies.training.megatron.core import (
    ShardedStateDict,
    TransformerConfig,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    make_sharded_tensors_for_checkpoint,
    mpu,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)

Cut = Literal["outputs", "inputs"]
"""What tensor-parallel ranks share: the outputs of a layer (column-parallel), or its inputs (row-parallel)."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The adapter of one Hugging Face layer, whole: it adds ``scaling * B A x``.

    Attributes:
        a: ``[rank, inputs]``.
        b: ``[outputs, rank]``.
        scaling: ``alpha / rank``.
    """

    a: Tensor
    b: Tensor
    scaling: float


class LayerAdapters(nn.Module):
    """This rank's part of the adapters of one layer.

    Where the ranks share outputs, every rank has ``A``, and rows of ``B``; where they share inputs, columns of ``A``,
    and ``B``. Only ``A x`` travels between ranks, which has ``rank`` numbers per token.

    Args:
        factors: By the names that the Hugging Face layers have within theirs (``q_proj``), of those with an adapter.
        outputs: This rank's outputs of every Hugging Face layer that the layer stands for, in their order.
        groups: In so many equal groups the outputs are laid out, each with some of every Hugging Face layer.
        cut: What ranks share.
        config: Of the model.
        device: Of the parameters.
    """

    def __init__(
        self,
        factors: Mapping[str, Factors],
        outputs: Mapping[str, int],
        *,
        groups: int,
        cut: Cut,
        config: TransformerConfig,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.enabled = True
        self._scaling = {name: factor.scaling for name, factor in factors.items()}
        self._outputs, self._groups, self._cut = dict(outputs), groups, cut
        self._sequence_parallel = config.sequence_parallel
        # As precise as the weights, at least fp32, like adapters elsewhere.
        dtype = torch.promote_types(config.params_dtype, torch.float32)
        part, parts = mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()
        for name, factor in factors.items():
            for kind, whole in (("A", factor.a), ("B", factor.b)):
                dim = self._dim(kind)
                value = whole if dim is None else whole.chunk(parts, dim)[part]
                parameter = nn.Parameter(value.detach().to(device, dtype, copy=True).contiguous())
                # Directly in this module, whose call waits for parameters that are gathered late.
                self.register_parameter(f"lora_{kind}_{name}", parameter)
                if dim is not None:
                    set_tensor_model_parallel_attributes(parameter, True, dim, 1)
                elif config.sequence_parallel:
                    # A rank computes its gradient over its part of the sequence: those of all ranks are summed.
                    parameter.sequence_parallel = True  # type: ignore[attr-defined]

    def forward(self, states: Tensor) -> Tensor:
        """Return what is added to this rank's outputs.

        Args:
            states: What the layer multiplies with its weight: ``[sequence, batch, inputs]`` of this rank.

        Returns:
            ``[sequence, batch, outputs]``, of the sequence what the layer has.
        """
        every_a = torch.cat([self._parameter("A", name) for name in self._scaling])
        hidden = self._exchange(F.linear(states, every_a.to(states.dtype)))
        ranks = [self._parameter("A", name).shape[0] for name in self._scaling]
        added = {
            name: F.linear(own * self._scaling[name], self._parameter("B", name).to(own.dtype))
            for name, own in zip(self._scaling, hidden.split(ranks, -1), strict=True)
        }
        if len(self._outputs) == 1:
            return next(iter(added.values()))
        pieces = [
            added[name] if name in added else hidden.new_zeros(*hidden.shape[:-1], count)
            for name, count in self._outputs.items()
        ]
        return torch.cat([piece.unflatten(-1, (self._groups, -1)) for piece in pieces], -1).flatten(-2)

    def parts(self, name: str) -> tuple[tuple[Tensor, int | None], tuple[Tensor, int | None]]:
        """Return ``A`` and ``B`` of a Hugging Face layer, with the dimension that is cut, ``None`` for what is not.

        ``A`` is ``[rank, inputs]`` and ``B`` ``[outputs, rank]``, as much of them as this rank has.
        """
        a, b = ((self._parameter(kind, name).detach(), self._dim(kind)) for kind in "AB")
        return a, b

    def scaling(self, name: str) -> float:
        """Return what ``B A`` of a Hugging Face layer is multiplied with."""
        return self._scaling[name]

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> ShardedStateDict:
        """Return what Megatron-Core asks every module for that goes into a checkpoint."""
        state = self.state_dict(prefix="", keep_vars=True)
        # Named lora_A_… and lora_B_….
        dims = {name: self._dim(name[5]) for name in state}
        cut = {name: dim for name, dim in dims.items() if dim is not None}
        groups = {
            "tp_group": mpu.get_tensor_model_parallel_group(),
            "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
        }
        found: ShardedStateDict = make_sharded_tensors_for_checkpoint(state, prefix, cut, sharded_offsets, **groups)
        return found

    def _exchange(self, hidden: Tensor) -> Tensor:
        """Complete ``A x``, and in the backward pass its gradient, which every rank knows a part of."""
        exchange: Any
        if self._cut == "outputs":
            exchange = copy_to_tensor_model_parallel_region
            if self._sequence_parallel:
                exchange = gather_from_sequence_parallel_region
        else:
            exchange = reduce_from_tensor_model_parallel_region
            if self._sequence_parallel:
                exchange = reduce_scatter_to_sequence_parallel_region
        completed: Tensor = exchange(hidden)
        return completed

    def _dim(self, kind: str) -> int | None:
        if self._cut == "outputs":
            return 0 if kind == "B" else None
        return 1 if kind == "A" else None

    def _parameter(self, kind: str, name: str) -> nn.Parameter:
        return self.get_parameter(f"lora_{kind}_{name}")


def adapt(linear: nn.Module, adapters: LayerAdapters) -> None:
    """Let a layer add what its adapters say to its outputs.

    Raises:
        ValueError: The layer keeps the states to itself that its weight is multiplied with.
    """
    normed = hasattr(linear, "layer_norm_weight")
    if normed:
        if not hasattr(linear, "return_layernorm_output"):
            raise ValueError(
                f"lora_rank: {type(linear).__name__} has a norm inside and does not return its output, which adapters "
                "need. Use layers with the norm outside (layer_spec), or train with fsdp_train."
            )
        linear.return_layernorm_output = True  # type: ignore[assignment]
    linear.register_forward_hook(partial(_add, adapters, normed))


def _add(adapters: LayerAdapters, normed: bool, layer: nn.Module, inputs: Sequence[Tensor], outputs: Any) -> Any:
    """Return the outputs of a layer, and its bias where it is to be added later, with those of its adapters."""
    if not normed:
        (states, *_), (value, bias) = inputs, outputs
    elif len(outputs) == 3:
        value, bias, states = outputs
    else:
        (value, states), bias = outputs
    return (value + adapters(states) if adapters.enabled else value), bias
