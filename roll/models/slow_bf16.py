"""How much longer this machine's processor takes in bf16 than in fp32."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

import torch

BEARABLE: Final = 4.0
"""How many times as long as in fp32 a product may take before somebody is told. Processors with arithmetic in bf16, or
with vectors wide enough to do as if, stay below 2; the others need 50 times as long."""
_SIZE, _ROUNDS = 192, 3


@lru_cache(maxsize=1)
def bf16_slowdown() -> float:
    """Return how many times as long as in fp32 a product of matrices takes in bf16 here; measured once in a process."""
    return _seconds(torch.bfloat16) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    matrix = torch.ones(_SIZE, _SIZE, dtype=dtype)
    taken = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        torch.mm(matrix, matrix)
        taken.append(time.perf_counter() - begun)
    return min(taken)
