"""Hand-over inside one process: the tensors themselves, no copy, no wait."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch

from roll.distributed.weight_sync.control import SENDER
from roll.distributed.weight_sync.errors import WeightSyncTimeoutError
from roll.strategies.base import WeightUpdate


class LocalChannel:
    """Updates on their way to receivers in the same process.

    Args:
        receivers: Their names.
    """

    def __init__(self, receivers: Sequence[str]) -> None:
        self._queues: dict[str, queue.SimpleQueue[WeightUpdate]] = {name: queue.SimpleQueue() for name in receivers}

    def put(self, version: int, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Offer an update to every receiver; one that was not taken is replaced, for nobody wants old weights.

        Args:
            version: Of the policy.
            named_tensors: Names and full tensors of any shape.
        """
        if len(self._queues) > 1:
            # An iterator can be read once.
            named_tensors = list(named_tensors)
        for waiting in self._queues.values():
            while not waiting.empty():
                waiting.get_nowait()
            waiting.put(WeightUpdate(version, named_tensors))

    def take(self, name: str, timeout: float) -> WeightUpdate:
        """Return the update for receiver ``name``.

        Raises:
            WeightSyncTimeoutError: If none comes within ``timeout`` seconds.
        """
        try:
            return self._queues[name].get(timeout=timeout)
        except queue.Empty:
            raise WeightSyncTimeoutError(
                f"weight sync: {name} waited {timeout:g} s for {SENDER} to send weights"
            ) from None

    def __reduce__(self) -> NoReturn:
        """Refuse to leave the process.

        Raises:
            TypeError: Always.
        """
        raise TypeError("weight sync: an in_process offer works in one process only; use method broadcast")
