"""The L2 term of the loss, whose gradient must be added before gradients are shared out."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class SquarePenalty:
    """Adds ``l2 / 2 * sum(w^2)`` to the loss in the backward pass.

    A parameter's gradient is seen whole, and the parameter with it, only at the moment when the backward pass has
    computed it. The term is added there, on every rank: DeepSpeed averages gradients over ranks.

    Args:
        matrices: The parameters that count.
        l2: The weight of the term; 0 for none.

    Attributes:
        active: Whether the next backward pass adds the term; setting it starts the value over.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], l2: float) -> None:
        self._l2 = l2
        self._active = False
        self._squares: list[Tensor] = []
        self._hooks = [matrix.register_hook(self._hook(matrix)) for matrix in matrices] if l2 else []

    @property
    def active(self) -> bool:
        """Whether the next backward pass adds the term."""
        return self._active

    @active.setter
    def active(self, active: bool) -> None:
        self._active = active
        self._squares = []

    @property
    def value(self) -> float:
        """The term as of the last backward pass that added it."""
        return 0.5 * self._l2 * float(torch.stack(self._squares).sum()) if self._squares else 0.0

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, matrix: nn.Parameter):  # type: ignore[no-untyped-def]
        def add(gradient: Tensor) -> Tensor:
            if not self._active:
                return gradient
            weights = matrix.detach()
            self._squares.append(weights.square().sum(dtype=torch.float64))
            return gradient + self._l2 * weights

        return add
