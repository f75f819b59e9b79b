"""Named in ``env_modules`` or ``reward_modules``, kills its own process when ``ROLL_TEST_KILL`` says (``update:4``).

The moments: ``rollout`` (half of the episodes are played), ``update`` (between optimiser steps) and ``checkpoint``
(the weights are written, the rest is not), each at its n-th time in this process. ``ROLL_TEST_SIGNAL`` sends another
signal than SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

from roll.pipelines.sampling.meter import RolloutMeter
from roll.strategies.training.pytorch.train import FsdpTrainStrategy

MOMENT, _, TIME = os.environ.get("ROLL_TEST_KILL", "never:0").partition(":")
SIGNAL = signal.Signals[os.environ.get("ROLL_TEST_SIGNAL", "SIGKILL")]
seen: Counter[str] = Counter()


def reached(moment: str) -> None:
    seen[moment] += 1
    if moment == MOMENT and seen[moment] == int(TIME):
        os.kill(os.getpid(), SIGNAL)


original_member = RolloutMeter.member
original_train_step = FsdpTrainStrategy.train_step
original_save_hf = FsdpTrainStrategy.save_hf


def member(self: Any, *arguments: Any) -> None:
    original_member(self, *arguments)
    if self.finished == self.members // 2:
        reached("rollout")


def train_step(self: Any, *arguments: Any) -> Any:
    reached("update")
    return original_train_step(self, *arguments)


def save_hf(self: Any, *arguments: Any) -> Any:
    reached("checkpoint")
    return original_save_hf(self, *arguments)


RolloutMeter.member = member  # type: ignore[method-assign]
FsdpTrainStrategy.train_step = train_step  # type: ignore[method-assign]
FsdpTrainStrategy.save_hf = save_hf  # type: ignore[method-assign]
