"""The keys of an evaluation without training."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from roll.config.errors import Problem
from roll.config.rlvr import RLVRConfig
from roll.config.rlvr_checks import evaluation_problems
from roll.config.run import ConfigPath
from roll.config.worker import DataArgs


class EvaluationConfig(RLVRConfig):
    """Everything that ``examples/start_evaluation.py`` reads: any RLVR configuration, and recorded responses.

    What only training needs is accepted and left alone, so that the configuration of a run can evaluate its outcome.
    """

    program = "examples/start_evaluation.py"

    recorded: ConfigPath | None = Field(
        None,
        description="Responses to grade instead of sampling them: trajectories that a run has stored (parquet), whose "
        "prompts are looked up in the validation files, or a data file with a column `response` or `responses`.",
    )

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
