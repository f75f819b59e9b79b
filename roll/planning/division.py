"""How a trained model is spread over devices, whichever strategy does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.config.strategies import STRATEGIES
from roll.planning.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Ranks, and what each of them has of the model and of a sequence.

    Attributes:
        ranks: Devices of the role.
        tensor: Ranks that share every matrix.
        pipeline: Ranks that share the layers.
        context: Ranks that share the tokens of a sequence (context parallelism, Ulysses).
        expert: Ranks that share the experts.
        expert_tensor: Ranks that share the matrices of an expert.
        sequence_parallel: Whether activations between matrices are shared by the tensor ranks too.
    """

    ranks: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False

    @property
    def data(self) -> int:
        """Ranks, or groups of them, that take different rows."""
        return max(1, self.ranks // (self.tensor * self.pipeline * self.context))

    @classmethod
    def of(cls, strategy: str, options: Mapping[str, Any] | None, ranks: int) -> Division:
        """Return the division that a strategy's options ask for."""
        given = dict(options or {})

        def size(key: str) -> int:
            value = given.get(key)
            return value if isinstance(value, int) and value > 0 else 1

        if not STRATEGIES.get(strategy).has_own_layers:
            return cls(ranks=ranks, context=size("ulysses_size"))
        tensor = size("tensor_model_parallel_size")
        return cls(
            ranks=ranks,
            tensor=tensor,
            pipeline=size("pipeline_model_parallel_size"),
            context=size("context_parallel_size"),
            expert=size("expert_model_parallel_size"),
            expert_tensor=given.get("expert_tensor_parallel_size") or tensor,
            sequence_parallel=bool(given.get("sequence_parallel")),
        )

    def numbers(self, shape: ModelShape) -> tuple[int, int]:
        """Return the numbers of the fullest rank: those that all data ranks copy, and those of its experts."""
        stage = -(-shape.layers // self.pipeline)
        sparse = min(shape.sparse_layers, stage)
        experts = sparse * shape.layer_experts // (self.expert * self.expert_tensor)
        dense = sparse * (shape.sparse_layer - shape.layer_experts) + (stage - sparse) * shape.dense_layer
        ends = shape.embedding if self.pipeline > 1 else shape.embedding + shape.head
        return (dense + ends) // self.tensor + shape.hidden + shape.vision, experts
