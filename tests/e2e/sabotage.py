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

from roll.schedulers.answers import PromptScheduler
from roll.schedulers.groups import RolloutScheduler
from roll.strategies.training.pytorch.train import FsdpTrainStrategy

MOMENT, _, TIME = os.environ.get("ROLL_TEST_KILL", "never:0").partition(":")
SIGNAL = signal.Signals[os.environ.get("ROLL_TEST_SIGNAL", "SIGKILL")]
seen: Counter[str] = Counter()


def reached(moment: str) -> None:
    seen[moment] += 1
    if moment == MOMENT and seen[moment] == int(TIME):
        os.kill(os.getpid(), SIGNAL)


original_collect = RolloutScheduler.collect
original_collect_prompts = PromptScheduler.collect
original_train_step = FsdpTrainStrategy.train_step
original_save_hf = FsdpTrainStrategy.save_hf


async def collect(self: Any, specs: Any, on_progress: Any = None) -> Any:
    def watch(done: int, total: int) -> None:
        if done == total // 2 and specs[0].group_id.startswith("train-"):
            reached("rollout")
        if on_progress is not None:
            on_progress(done, total)

    return await original_collect(self, specs, watch)


async def collect_prompts(self: Any, *arguments: Any, on_progress: Any = None, **options: Any) -> Any:
    def watch(done: int, total: int) -> None:
        if done == total // 2:
            reached("rollout")
        if on_progress is not None:
            on_progress(done, total)

    return await original_collect_prompts(self, *arguments, on_progress=watch, **options)


def train_step(self: Any, *arguments: Any) -> Any:
    reached("update")
    return original_train_step(self, *arguments)


def save_hf(self: Any, *arguments: Any) -> Any:
    reached("checkpoint")
    return original_save_hf(self, *arguments)


RolloutScheduler.collect = collect  # type: ignore[method-assign]
PromptScheduler.collect = collect_prompts  # type: ignore[method-assign]
FsdpTrainStrategy.train_step = train_step  # type: ignore[method-assign]
FsdpTrainStrategy.save_hf = save_hf  # type: ignore[method-assign]
