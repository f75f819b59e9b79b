"""What keeps a trained role from beginning with the optimiser of another run."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.errors import Problem
from roll.config.strategies import STRATEGIES, strategies_for
from roll.config.worker import WorkerConfig


def optimizer_problems(path: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield why a trained role cannot begin with the optimiser of another run.

    Args:
        path: The key that asks for it.
        worker: The role.
    """
    name = worker.strategy_args.strategy_name
    if name in STRATEGIES and not worker.strategy_args.about.takes_optimizer_state:
        able = [each for each in strategies_for("actor_train") if STRATEGIES.get(each).takes_optimizer_state]
        yield Problem(path, f"{name} cannot begin with the optimiser of another run.", f"use {' or '.join(able)}.")
    if worker.model_args.lora_rank is not None:
        message = "the adapters are new, and no optimiser has seen them."
        yield Problem(path, message, "leave it out, or train without lora_rank.")
