"""Ranks that run the functions of ``megatron_support.runs``: only they import Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rank_pool import Function, RankPool

from tests.sharing import shared_by_group


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


@contextmanager
def _pools() -> Iterator[dict[int, MegatronRanks]]:
    started: dict[int, MegatronRanks] = {}
    yield started
    for one in started.values():
        one.close()


def ranks(size: int) -> MegatronRanks:
    """Return ``size`` ranks, started when first asked for, and again where a test has failed on them."""
    started = shared_by_group(_pools)
    if size not in started or started[size].closed:
        started[size] = MegatronRanks(size)
    return started[size]
