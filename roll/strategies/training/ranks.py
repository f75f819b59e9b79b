"""The processes that train one model together."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist

from roll.strategies.base import BatchTotals

T = TypeVar("T")


class Ranks:
    """All processes of the default process group, or this process alone where there is none.

    Attributes:
        rank: Of this process.
        size: How many there are.
    """

    def __init__(self) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if distributed else 0
        self.size = dist.get_world_size() if distributed else 1

    @property
    def device(self) -> torch.device:
        """Where this rank computes: its current CUDA device where ranks talk over NCCL, else the CPU."""
        if "nccl" in str(dist.get_backend()):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def gather(self, value: T) -> list[T]:
        """Return the ``value`` of every rank, in their order. Every rank must call it."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def total(self, totals: BatchTotals) -> BatchTotals:
        """Return the sums over ranks of the counts of their shares of a batch."""
        if self.size == 1:
            return totals
        shares = self.gather(totals)
        return BatchTotals(
            tokens=sum(share.tokens for share in shares),
            sequences=sum(share.sequences for share in shares),
            measured_tokens=sum(share.measured_tokens for share in shares),
        )
