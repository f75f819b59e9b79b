"""A step of DeepSpeed on ranks of :class:`rank_pool.RankPool`, and the bytes that it takes."""

from __future__ import annotations

from functools import partial

from roll.planning.training_states import Training
from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy
from tests.planning.measuring import measured


def zero_step(name: str, stage: int) -> tuple[int, Training]:
    """Return the most bytes of a step on one of two ranks, and the plan of it."""
    config = {"zero_optimization": {"stage": stage}}
    make = partial(DeepSpeedTrainStrategy, config=config)
    most, training, strategy = measured("deepspeed_train", config, name, make, ranks=2)
    strategy.close()
    return most, training
