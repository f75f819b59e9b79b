"""Number formats for which this machine's processor has no arithmetic of its own: a step takes many times as long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import torch

from roll.config.strategies import Ability, ability_for
from roll.config.trainer_keys import TrainerKeys
from roll.workers.loading import number_format

BEARABLE: Final = 4.0
"""How many times as long as in fp32 a product may take before somebody is told. Processors with arithmetic in bf16, or
with vectors wide enough to do as if, stay below 2; the others need 50 times as long."""
_SIZE, _ROUNDS = 192, 3


def slow_format_warnings(config: TrainerKeys) -> Iterator[str]:
    """Yield what is trained in bf16 by this process on a processor that has no such arithmetic, and what to set."""
    if config.cluster != "local" or torch.cuda.is_available():
        return
    for role, _ in config.roles():
        if ability_for(role) is Ability.TRAIN and number_format(config, role) == "bf16":
            slowdown = bf16_slowdown()
            if slowdown > BEARABLE:
                yield (
                    f"warning: {role} computes in bf16, which takes this processor {slowdown:.0f} times as long as "
                    f"fp32. Set {role}.model_args.dtype=fp32."
                )


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
