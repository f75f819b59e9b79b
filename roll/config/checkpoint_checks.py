"""What keeps the checkpoints of a trained role from having all that is asked of them."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.errors import Problem
from roll.config.strategies import STRATEGIES, strategies_for
from roll.config.worker import WorkerConfig


def megatron_problems(path: str, value: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield why the checkpoints of a trained role cannot have its model in Megatron-Core's format.

    Args:
        path: The key that asks for it.
        value: What it says.
        worker: The role.
    """
    name = worker.strategy_args.strategy_name
    if name in STRATEGIES and not worker.strategy_args.about.saves_megatron:
        able = [each for each in strategies_for("actor_train") if STRATEGIES.get(each).saves_megatron]
        fix = f"use {' or '.join(able)}, or set it to never."
        yield Problem(path, f"{name} writes no models in Megatron-Core's format.", fix, value)
    if worker.model_args.lora_rank is not None:
        message = "a model with adapters is merged in the Hugging Face format only."
        yield Problem(path, message, "set it to never, or train without lora_rank.", value)
