"""Beginning with what another run's optimiser keeps, and going on with a schedule of one's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from roll.strategies.training.random_state import random_state, restore_random_state


@contextmanager
def own_schedule(optimizer: Optimizer, scheduler: LRScheduler, device: torch.device | str) -> Iterator[None]:
    """Keep options of the optimiser, schedule and random state, whatever is loaded inside.

    Args:
        optimizer: Of PyTorch, also where something is wrapped around it.
        scheduler: Its schedule.
        device: Where passes draw random numbers.
    """
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    schedule, random = copy.deepcopy(scheduler.state_dict()), random_state(device)
    yield
    scheduler.load_state_dict(schedule)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
    restore_random_state(random, device)
