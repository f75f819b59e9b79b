"""The keys of an evaluation without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import Field

from roll.config.batch_plan import BatchPlan
from roll.config.errors import Problem
from roll.config.rlvr import RLVRConfig
from roll.config.rlvr_checks import evaluation_problems
from roll.config.run import ConfigPath
from roll.config.worker import DataArgs


@dataclass(frozen=True, slots=True)
class EvaluationPlan(BatchPlan):
    """The plan of an evaluation: nothing is updated.

    Attributes:
        recorded: Where the responses come from that are graded, if they are not sampled.
    """

    recorded: Path | None = None

    def describe(self) -> str:
        """Return a line that says what is graded."""
        if self.recorded is not None:
            return f"evaluate  the responses of {self.recorded}"
        return f"evaluate  {self.val.describe() if self.val else 'nothing'}"


class EvaluationConfig(RLVRConfig):
    """Everything that ``examples/start_evaluation.py`` reads: any RLVR configuration, and recorded responses.

    What only training needs is accepted and left alone, so that the configuration of a run can evaluate its outcome.
    """

    program = "examples/start_evaluation.py"
    trains = False

    recorded: ConfigPath | None = Field(
        None,
        description="Responses to grade instead of sampling them: trajectories that a run has stored (parquet), whose "
        "prompts are looked up in the validation files, or a data file with a column `response` or `responses`.",
    )

    def plan(self) -> EvaluationPlan:
        """Return what is graded."""
        plan = super().plan()
        return EvaluationPlan(**{each.name: getattr(plan, each.name) for each in fields(plan)}, recorded=self.recorded)

    @property
    def chat_template_key(self) -> str:
        """The key that names the chat template: that of the validation data, else that of training."""
        own = self.validation is not None and self.validation.data_args.template is not None
        return "validation.data_args.template" if own else super().chat_template_key

    @property
    def conversation_args(self) -> DataArgs:
        """The section that says how conversations are written: that of the validation data."""
        return self.val_data_args

    def problems(self) -> Iterator[Problem]:
        """Yield what stands in the way of evaluating."""
        return evaluation_problems(self)

    def cautions(self) -> Iterator[str]:
        """Nothing: keys of training have no effect on purpose."""
        return iter(())
