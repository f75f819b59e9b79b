"""Number formats for which this machine's processor has no arithmetic of its own: a step takes many times as long."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from roll.config.strategies import Ability, ability_for
from roll.config.trainer_keys import TrainerKeys
from roll.models.slow_bf16 import BEARABLE, bf16_slowdown
from roll.workers.loading import number_format


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
