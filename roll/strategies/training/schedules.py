"""Learning-rate schedules: how large the rate of each optimiser step is, beside its peak."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR

from roll.strategies.jobs import TrainOptions


def learning_rate_factor(
    step: int, *, kind: str, warmup_steps: int, total_steps: int, decay_steps: int = 0, min_ratio: float = 0.0
) -> float:
    """Return the rate of a step over the peak, from ``min_ratio`` to 1; below it while warming up, from 0, linearly.

    Args:
        step: Optimiser steps before it.
        kind: ``constant`` (without warm-up), ``constant_with_warmup``; ``linear`` and ``cosine``, which decay from the
            end of the warm-up to the last step; ``wsd``, which stays at the peak and decays in the last steps.
        warmup_steps: Steps of warm-up.
        total_steps: Steps of the run.
        decay_steps: Steps in which ``wsd`` decays, as half a cosine.
        min_ratio: Where the decay ends.

    Raises:
        ValueError: No schedule is called ``kind``.

    Source: Loshchilov and Hutter 2017, SGDR (``cosine``); Hu et al. 2024, MiniCPM (``wsd``).
    """
    if kind == "constant":
        return 1.0
    if step < warmup_steps:
        return step / warmup_steps
    if kind == "constant_with_warmup":
        return 1.0
    if kind == "linear":
        falling = max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
    elif kind == "cosine":
        falling = _half_cosine(step - warmup_steps, total_steps - warmup_steps)
    elif kind == "wsd":
        falling = _half_cosine(max(0, step - (total_steps - decay_steps)), decay_steps)
    else:
        raise ValueError(f"no learning-rate schedule is called {kind!r}")
    return falling * (1.0 - min_ratio) + min_ratio


def make_schedule(optimizer: torch.optim.Optimizer, options: TrainOptions) -> LambdaLR:
    """Return the schedule of an optimiser; it advances once per optimiser step."""
    factor = partial(
        learning_rate_factor,
        kind=options.lr_scheduler_type,
        warmup_steps=options.warmup_steps,
        total_steps=max(options.total_steps, 1),
        decay_steps=options.decay_steps,
        min_ratio=options.min_lr_ratio,
    )
    return LambdaLR(optimizer, factor)


def _half_cosine(step: int, steps: int) -> float:
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * (step / max(1, steps)))))
