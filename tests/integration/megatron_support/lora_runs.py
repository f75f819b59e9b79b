"""What ranks do with LoRA adapters, and what `fsdp_train` does in one process. For ranks as `runs` is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDict

from megatron_support.scenarios import Case, Outcome
from roll.config import AgenticConfig
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.workers.factory import train_strategy


@dataclass
class LoraOutcome(Outcome):
    """With what the base model alone says of the batch, ``[rows of this rank, sequence]``."""

    reference: np.ndarray | None = None


def own_rows(strategy: Any, case: Case) -> slice:
    return case.own_rows(strategy.data_rank, strategy.data_size)


def scored(strategy: Any, case: Case, rows: slice) -> np.ndarray:
    batch = case.batch(77)[rows]
    outputs = strategy.compute_values(batch) if case.critic else strategy.compute_log_probs(batch)
    return outputs.numpy().copy()


def steps_and_files(strategy: Any, case: Case, batches: list[TensorDict], directory: Path | None) -> LoraOutcome:
    """Take steps with a strategy of any kind, write both kinds of files, and return what was written."""
    rows = own_rows(strategy, case)
    steps = [strategy.train_step(batch[rows], case.loss()) for batch in batches]
    with strategy.adapters_disabled():
        reference = scored(strategy, case, rows)
    if directory is not None:
        strategy.save_adapters(directory / "adapter")
        strategy.save_hf(directory / "hf")
    parameters = {name: tensor.detach().float().numpy().copy() for name, tensor in strategy.named_parameters()}
    return LoraOutcome(steps, scored(strategy, case, rows), parameters, rows, reference)


def train_fsdp(case: Case, batches: list[TensorDict], directory: Path | None = None) -> LoraOutcome:
    """In this process, where no process group is."""
    predicts = "values" if case.critic else "log_probs"
    strategy = FsdpTrainStrategy(case.adapt(case.model()), case.options, predicts=predicts)
    return steps_and_files(strategy, case, batches, directory)


def train_as_configured(settings: dict[str, Any], case: Case, batches: list[TensorDict]) -> LoraOutcome:
    """With the strategy that the factory of roles makes of a configuration."""
    return steps_and_files(train_strategy(AgenticConfig(**settings), "actor_train"), case, batches, None)
