"""What runs have in common whose steps are rows of files: how many a step has, how many epochs the run is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.errors import Problem
from roll.config.policy_evaluation import PolicyEvaluationKeys
from roll.config.role_checks import role_problems
from roll.config.worker import DataArgs, Positive

_UNREAD: Final = {
    "ground_truth": "nothing is graded",
    "tag": "rows belong to no domain",
    "domain_interleave_probs": "rows belong to no domain",
    "history": "answers that the template rewrites make sequences of their own",
}

_EVERY: Final = {"save_epochs": "save_steps", "eval_epochs": "eval_steps"}
"""Keys in passes over the rows, and what they stand for."""


class HeldOutConfig(ConfigModel):
    """Rows that are not trained on."""

    data_args: DataArgs = Field(default_factory=DataArgs, description="Held-out files: metric `val/loss`.")


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What the keys of a run amount to.

    Attributes:
        rows: Rows of an optimiser step.
        sequence_length: Most tokens of a sequence.
        max_steps: Optimiser steps; ``None`` where the rows, not read yet, decide.
        epochs: Passes over the rows, where they decide.
    """

    rows: int
    sequence_length: int
    max_steps: int | None
    epochs: float | None

    def describe(self) -> str:
        """Return a few lines, for people."""
        run = f"{self.max_steps} steps" if self.max_steps is not None else f"{self.epochs:g} epochs"
        return "\n".join(
            [f"update    {self.rows} rows per step, at most {self.sequence_length} tokens each", f"run       {run}"]
        )


class RowSteps(PolicyEvaluationKeys):
    """The keys of every run over rows, and what they mean together."""

    sequence_length: Positive = Field(
        2048, description="Most tokens of a sequence. What is longer is an error, or as `data_args` says."
    )
    validation: HeldOutConfig | None = Field(None, description="Held-out rows. null: none.")
    save_epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Passes over the rows between checkpoints, in whole steps, in place of `save_steps`."
    )
    eval_epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Passes over the rows between evaluations, in whole steps, in place of `eval_steps`."
    )

    @property
    def rows_per_step(self) -> int:
        """Rows of an optimiser step, all ranks together."""
        training = self.actor_train.training_args
        accumulation = training.gradient_accumulation_steps or 1
        return training.per_device_train_batch_size * accumulation * self.actor_train.data_parallel_size

    @property
    def epochs(self) -> float | None:
        """Passes over the rows, where they decide how long the run is: ``max_steps`` was not set."""
        if "max_steps" in self.model_fields_set:
            return None
        return self.actor_train.training_args.num_train_epochs or 1.0

    def rows_to_train(self, rows: int) -> int | None:
        """Return how many of ``rows``, repeated, the run trains on; ``None`` where ``max_steps`` decides."""
        return None if self.epochs is None else max(1, round(self.epochs * rows))

    def for_rows(self, rows: int) -> Self:
        """Return the configuration of a run over so many rows: with steps in the place of passes over them."""
        total = self.rows_to_train(rows)
        steps = {} if total is None else {"max_steps": -(-total // self.rows_per_step)}
        for every, key in _EVERY.items():
            epochs = getattr(self, every)
            if epochs is not None:
                steps[key] = max(1, math.ceil(epochs * rows / self.rows_per_step))
        return self.model_copy(update=steps)

    def plan(self) -> RowPlan:
        """Return how many rows a step has, and how long the run is."""
        steps = self.max_steps if self.epochs is None else None
        return RowPlan(self.rows_per_step, self.sequence_length, steps, self.epochs)

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed."""
        return {**super().identity(), "pretrain": self.pretrain, "rows_per_step": self.rows_per_step}

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        for role, worker in self.roles():
            yield from role_problems(self, role, worker)
        for every, key in _EVERY.items():
            if getattr(self, every) is not None and key in self.model_fields_set:
                yield Problem(every, f"{key} says it too.", "leave one of them out.", getattr(self, every))
        for path, data in self.data_sections():
            if not data.file_name and data.custom_cls is None:
                fix = "name one or several files (.jsonl, .json, .csv, .parquet)."
                yield Problem(f"{path}.file_name", "there is nothing to learn from.", fix)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect."""
        yield from super().cautions()
        arguments = self.actor_train.training_args
        if arguments.num_train_epochs is not None and self.epochs is None:
            yield "actor_train.training_args.num_train_epochs: has no effect, since max_steps says how long the run is."
        for path, data in self.data_sections():
            for key, reason in self.unread().items():
                if key in data.model_fields_set and getattr(data, key) != DataArgs.model_fields[key].default:
                    yield f"{path}.{key}: has no effect: {reason}."

    def unread(self) -> Mapping[str, str]:
        """Return the keys of ``data_args`` that nothing reads, and why."""
        return _UNREAD

    def data_sections(self) -> Iterator[tuple[str, DataArgs]]:
        """Yield the key path and the keys of every section that names files."""
        yield "actor_train.data_args", self.actor_train.data_args
        if self.validation is not None:
            yield "validation.data_args", self.validation.data_args

    def unread_columns(self, instead: Mapping[str, str]) -> Iterator[Problem]:
        """Yield keys of ``data_args`` that name columns elsewhere, and here have others ``instead``."""
        for path, data in self.data_sections():
            for key, other in instead.items():
                if getattr(data, key) is not None:
                    fix = f"use {other}, which holds for training and validation."
                    yield Problem(f"{path}.{key}", "columns have keys of their own here.", fix, getattr(data, key))
