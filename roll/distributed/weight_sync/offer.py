"""What a receiver must be given to find its sender."""

from __future__ import annotations

from dataclasses import dataclass

from roll.distributed.weight_sync.in_process import LocalChannel
from roll.distributed.weight_sync.settings import Backend, Method


@dataclass(frozen=True, slots=True)
class WeightOffer:
    """Where a sender is and how it sends. Pickle it to the engines' processes.

    Attributes:
        method: How tensors travel.
        backend: Of a broadcast.
        host: Address of the sender.
        port: Port of its message store.
        receivers: Names of all receivers, in the order of their ranks (1, 2, …).
        timeout: Seconds that a wait may last.
        channel: The hand-over point, for ``in_process``.
    """

    method: Method
    backend: Backend
    host: str
    port: int
    receivers: tuple[str, ...]
    timeout: float
    channel: LocalChannel | None = None
