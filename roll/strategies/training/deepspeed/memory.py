"""Handing the device over: what an engine holds goes to CPU memory and comes back into the place where it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roll.strategies.parking import Parking
from roll.strategies.training.deepspeed.engine import is_shared_out


class DeviceMemory:
    """The memory of an engine: weights with their gradients, and what the optimiser keeps.

    DeepSpeed keeps weights, gradients and moments as views of a few large buffers. The buffers lose their memory and
    get it back, so whatever views them stays as it is. (DeepSpeed's own ``offload_states`` demands an optimiser that
    is compiled, at stage 3, and knows nothing of stage 0.)

    Args:
        module: What the engine computes with.
        engine: The engine; ``None`` where there is none.
        optimizer: The optimiser that DeepSpeed was given; ``None`` where nothing is trained.
        everywhere: Hand over memory of the CPU too.

    Attributes:
        weights: Whether weights and gradients are handed over.
        states: Whether what the optimiser keeps is handed over.
    """

    def __init__(
        self, module: nn.Module, engine: Any = None, optimizer: Optimizer | None = None, *, everywhere: bool = False
    ) -> None:
        self._module, self._engine, self._optimizer, self._everywhere = module, engine, optimizer, everywhere
        self._parked_weights, self._parked_states = Parking(), Parking()
        self.weights = self.states = False

    def offload(self, *, weights: bool, optimizer: bool) -> None:
        """Move to CPU memory, and free the device's."""
        if self._engine is not None:
            self._engine.empty_partition_cache()
        if weights and not self.weights:
            self._parked_weights.park(filter(self._movable, self._weights()))
        if optimizer and not self.states:
            own = {tensor.untyped_storage().data_ptr() for tensor in self._weights()}
            kept = (tensor for tensor in self._states() if tensor.untyped_storage().data_ptr() not in own)
            self._parked_states.park(filter(self._movable, kept))
        self.weights, self.states = self.weights or weights, self.states or optimizer
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def reload(self, *, weights: bool, optimizer: bool) -> None:
        """Move back, exactly as it was."""
        if weights:
            self._parked_weights.restore()
            self.weights = False
        if optimizer:
            self._parked_states.restore()
            self.states = False

    def check(self) -> None:
        """Raise where something is handed over.

        Raises:
            RuntimeError: It has to be taken back first.
        """
        if self.weights or self.states:
            raise RuntimeError("Weights or optimiser states were handed over by offload(). Call reload() before this.")

    @property
    def parked(self) -> tuple[int, int]:
        """Bytes of weights and gradients, and of optimiser states, that are in CPU memory meanwhile."""
        return self._parked_weights.nbytes, self._parked_states.nbytes

    def _movable(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cuda" or self._everywhere

    def _weights(self) -> Iterator[Tensor]:
        """Yield weights, or this rank's shares of them, buffers and gradients."""
        for parameter in self._module.parameters():
            yield parameter.data
            if is_shared_out(parameter):
                yield parameter.ds_tensor.data  # type: ignore[attr-defined]
            if parameter.grad is not None:
                yield parameter.grad
        yield from self._module.buffers()
        # Stage 3 keeps one buffer for this rank's shares of all gradients.
        gradients = getattr(getattr(self._engine, "optimizer", None), "grad_partitions_flat_buffer", None)
        if isinstance(gradients, Tensor):
            yield gradients

    def _states(self) -> Iterator[Tensor]:
        """Yield moments, and the weights that the optimiser updates: DeepSpeed makes them its parameters."""
        if self._optimizer is None:
            return
        for parameter, state in self._optimizer.state.items():
            yield parameter.data
            # AdamW counts its steps on the CPU.
            yield from (value for value in state.values() if isinstance(value, Tensor) and value.ndim)
        for group in self._optimizer.param_groups:
            yield from (parameter.data for parameter in group["params"])
