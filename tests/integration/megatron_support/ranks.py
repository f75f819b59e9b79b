"""Ranks that run the functions of ``megatron_support.runs``: only they import Megatron-Core."""

from __future__ import annotations

from typing import Any

from rank_pool import Function, RankPool, shared


def compute_on_cpu() -> None:
    """Answer for CUDA in this process, for good."""
    from roll.rehearsal.megatron_on_cpu import CudaIsTheCpu

    CudaIsTheCpu().__enter__()


class MegatronRanks(RankPool):
    """``size`` ranks on the CPU."""

    def __init__(self, size: int) -> None:
        super().__init__(size, prepare="megatron_support.ranks:compute_on_cpu")

    def run(self, function: Function, *arguments: Any) -> list[Any]:
        """Call a function of ``megatron_support.runs``, by its name, on every rank."""
        return super().run(f"megatron_support.runs:{function}", *arguments)


def ranks(size: int) -> MegatronRanks:
    """Return ``size`` ranks, which the tests of a group share."""
    return shared(MegatronRanks, size)
