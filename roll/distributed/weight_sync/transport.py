"""What a way of sending tensors has to offer, and what both ends of it know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from roll.distributed.weight_sync.buffers import BufferPool
from roll.distributed.weight_sync.control import Control
from roll.distributed.weight_sync.manifest import Bucket, Manifest, TensorSpec


@dataclass(frozen=True, slots=True)
class Link:
    """One participant's end of a connection.

    Attributes:
        control: Messages.
        manifest: What is sent.
        rank: 0 for the sender, then the receivers in order.
        size: Participants.
        device: Where buckets are in this process.
        pool: Memory for them.
    """

    control: Control
    manifest: Manifest
    rank: int
    size: int
    device: torch.device
    pool: BufferPool


class SendingEnd(Protocol):
    """Sends buckets to all receivers. Made when all have joined; that may block until they have made theirs."""

    def send(self, sync: int, buckets: Iterator[tuple[Bucket, torch.Tensor]]) -> None:
        """Send all buckets of one sync, each with its bytes ``[nbytes]``; returns when they may be overwritten."""
        ...

    def finish(self, sync: int) -> None:
        """Called when every receiver has loaded the weights."""
        ...

    def close(self) -> None:
        """Free everything, also in the middle of a sync that failed."""
        ...


class ReceivingEnd(Protocol):
    """Receives what a :class:`SendingEnd` sends."""

    def receive(self, sync: int) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Yield the tensors of one sync, of any shape, in the manifest's order."""
        ...

    def close(self) -> None:
        """Free everything, also in the middle of a sync that failed."""
        ...
